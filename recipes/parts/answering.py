"""Steps that the recipes for answering systems share: samples, evaluation, teachers, rows of the table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.errors import InputError
from ratchet.jobs.answers import (
    compare_checkpoints,
    evaluate_answers,
    generate,
    prepare_tasks,
    rejection_sample,
    sft,
    teacher_logprobs,
)
from ratchet.jobs.on_policy import distill, grpo
from ratchet.orchestrator.step import Output, Row, Source, Step, Summary, step
from ratchet.recipes.parts.models import choose_model

Model = Source | Output


def prepare_samples(name: str, data: str | Output, test: str, **settings: Any) -> Step:
    """Split a task's file into train, valid and test. test: the official test file; empty: a part of `data`."""
    given: Source | Output
    given = Source.find(data) if isinstance(data, str) else data
    return step(
        name,
        prepare_tasks.JOB,
        data=given,
        test=Source.find(test, "test") if test else None,
        **settings,
    )


def generate_answers(name: str, *, num_completions: int, **values: Any) -> Step:
    """Generate completions: at temperature 0.7, or greedily if `num_completions` is 1."""
    temperature = 0.7 if num_completions > 1 else 0.0
    return step(
        name, generate.JOB, num_completions=num_completions, temperature=temperature, **values
    )


def evaluate_model(
    name: str,
    model: Model,
    adapter: Output | None,
    samples: Output,
    *,
    num_completions: int = 1,
    **sampling: Any,
) -> Step:
    """Generate a model's answers to the samples and verify them."""
    inputs: dict[str, Any] = {"model": model, "adapter": adapter, "samples": samples}
    answers = generate_answers(
        f"{name}/generate", num_completions=num_completions, **inputs, **sampling
    )
    ks = sorted({*evaluate_answers.Config.k, num_completions})
    return step(
        f"{name}/evaluate",
        evaluate_answers.JOB,
        completions=answers,
        verifier_file=find_verifier(samples),
        k=tuple(ks),
    )


def find_verifier(samples: Output) -> Any:
    """Return the user's file with the verifier of samples of `prepare_tasks`; None if they have another verifier."""
    return samples.step.inputs["verifier_file"]


def learn_from_teacher(
    teacher: str,
    student: Model,
    samples: Output,
    *,
    num_completions: int,
    ce_weight: float,
    **sampling: Any,
) -> dict[str, Any]:
    """Return the arguments train, teacher and ce_weight of `sft`.

    If `num_completions` > 0, `sft` trains on the teacher's correct answers instead of the targets of the samples. If
    `ce_weight` < 1, it is also trained on the teacher's token distributions. Without a teacher, it trains on the
    samples alone."""
    if not teacher:
        return {"train": samples, "teacher": None, "ce_weight": 1.0}
    if not num_completions and ce_weight >= 1:
        raise InputError(
            f"teacher: '{teacher}' given, and nothing is learned from it; expected teacher_completions of 1 or more, or"
            " ce_weight below 1"
        )
    model = choose_model(teacher)
    train: Output | Step = samples
    if num_completions:
        answers = generate_answers(
            "teacher/generate",
            num_completions=num_completions,
            model=model,
            samples=samples,
            **sampling,
        )
        train = step(
            "teacher/rejection_sample",
            rejection_sample.JOB,
            completions=answers,
            samples=samples,
            verifier_file=find_verifier(samples),
        )
    if ce_weight >= 1:
        return {"train": train, "teacher": None, "ce_weight": 1.0}
    logprobs = step(
        "teacher/logprobs", teacher_logprobs.JOB, model=model, student=student, samples=train
    )
    return {"train": train, "teacher": logprobs, "ce_weight": ce_weight}


def distill_teacher(
    teacher: str, student: Model, samples: Output, *, num_completions: int, **settings: Any
) -> Step:
    """Train on a teacher's distributions over the student's own answers and the targets of samples. If
    `num_completions` > 0, the targets are the teacher's correct answers. settings: those of `distill`."""
    if not teacher:
        raise InputError(
            "distill_steps: given without a teacher; expected one, whose distributions are distilled; set teacher"
        )
    train: Output | Step = samples
    if num_completions:
        sampling = {name: settings[name] for name in ("max_new_tokens", "seed")}
        train = learn_from_teacher(
            teacher, student, samples, num_completions=num_completions, ce_weight=1.0, **sampling
        )["train"]
    return step(
        "distill", distill.JOB, base=student, teacher=choose_model(teacher), train=train, **settings
    )


def select_model(
    base: Model, training: Step, checkpoint: str | None = None
) -> tuple[Model, Output | None]:
    """Return (model, adapter or None) made by a training: the best ones, or those of a checkpoint."""
    made = take_result(training, checkpoint)
    if training.config.method == "full":
        return (made, None)
    return (base, made)


def take_result(training: Step, name: str | None = None) -> Output:
    """Return the model (method=full) or adapter made by a training: the best, or the checkpoint `name`."""
    return training[name or ("model" if training.config.method == "full" else "adapter")]


def finetune_and_compare(
    model: Model,
    prepared: Step,
    *,
    tests: Mapping[str, Output] | None = None,
    baselines: Sequence[str] = (),
    num_completions: int,
    teacher: str = "",
    teacher_completions: int = 0,
    ce_weight: float = 1.0,
    distill_steps: Sequence[int] = (),
    lmbda: float = 0.5,
    grpo_steps: Sequence[int] = (),
    grpo_rate: float | None = None,
    distill_rate: float | None = None,
    **settings: Any,
) -> Summary:
    """Finetune, and evaluate on the test samples: the untrained and the trained model, all checkpoints, the teacher and
    the baselines.

    tests: name of a task -> test samples of this task, which all models answer; an empty name means the task of
    `prepared`. None: its test samples only. The first ones compare the checkpoints. distill_steps: training steps of
    `distill`, which takes the place of `sft`, after which its model is saved and evaluated; empty: `sft`. grpo_steps:
    the same of `grpo`, which follows; empty: no GRPO. grpo_rate, distill_rate: learning rates of these jobs;
    None: their defaults. settings: settings of `sft`."""
    sampling = {name: settings[name] for name in ("max_new_tokens", "seed")}
    verifier = find_verifier(prepared["train"])
    held_out = {"valid": prepared["valid"], "verifier_file": verifier}
    if distill_steps:
        training = distill_teacher(
            teacher,
            model,
            prepared["train"],
            num_completions=teacher_completions,
            steps=distill_steps[-1],
            checkpoints=tuple(distill_steps),
            lmbda=lmbda,
            method=settings["method"],
            learning_rate=distill_rate,
            **held_out,
            **sampling,
        )
        numbers = tuple(distill_steps)
    else:
        distilled = {"num_completions": teacher_completions, "ce_weight": ce_weight, **sampling}
        learned = learn_from_teacher(teacher, model, prepared["train"], **distilled)
        training = step("sft", sft.JOB, base=model, **held_out, **learned, **settings)
        numbers = settings.get("checkpoints", ())
    systems = [System("untrained", "start", model, baseline=True)]
    for number in dict.fromkeys(numbers):  # the jobs refuse repeated ones
        name = f"checkpoint-{number}"
        systems.append(System(f"step {number}", name, *select_model(model, training, name)))
    best = "best" if distill_steps or "checkpoints" in settings else "trained"
    systems.append(System(best, best, *select_model(model, training), made_by=training))
    final = training
    if grpo_steps:
        base, adapter = select_model(model, training)
        final = step(
            "grpo",
            grpo.JOB,
            base=base,
            current_best=adapter,
            train=prepared["train"],
            method=training.config.method,
            steps=grpo_steps[-1],
            checkpoints=tuple(grpo_steps),
            learning_rate=grpo_rate,
            **held_out,
            **sampling,
        )
        for number in grpo_steps:
            name = f"checkpoint-{number}"
            chosen = select_model(base, final, name)
            systems.append(System(f"GRPO, step {number}", f"grpo/{name}", *chosen))
        systems.append(System("GRPO", "grpo/best", *select_model(base, final), made_by=final))
    if teacher:
        systems.append(System("teacher", "teacher/test", choose_model(teacher)))
    for number, name in enumerate(baselines):
        systems.append(System(name, f"baseline-{number}", choose_model(name), baseline=True))
    rows = []
    comparisons = []
    found: dict[str, Step] = {}
    for task, samples in (tests or {"": prepared["test"]}).items():
        options = {"num_completions": num_completions, "allow_other_task": bool(task), **sampling}
        suffix = f", as {task}" if task else ""
        for system in systems:
            place = f"{task}/{system.name}".lstrip("/")
            answered = evaluate_model(place, system.model, system.adapter, samples, **options)
            found.setdefault(system.name, answered)
            label = system.label + suffix
            rows.append(make_row(label, system, answered, num_completions))
            if system.made_by:
                comparisons.append((f"untrained{suffix}", label))
    goals = []
    compared_with = [one for one in systems if one.label in ("teacher", *baselines)]
    for prefix, source, before, steps in (
        ("", training, "start", numbers),
        ("grpo/", final, best, tuple(grpo_steps)),
    ):
        if steps:
            evaluations = tuple(found[f"{prefix}checkpoint-{number}"] for number in steps)
            compared = step(
                f"{prefix}checkpoints",
                compare_checkpoints.JOB,
                training=source,
                evaluations=evaluations,
                before=found[before],
                baselines=tuple(found[one.name] for one in compared_with),
                names=tuple(one.label for one in compared_with),
                steps=steps,
            )
            goals.append(compared)
    return Summary(rows, goals=goals, best={"model": take_result(final)}, comparisons=comparisons)


@dataclass(frozen=True)
class System:
    """A model with a row in the table."""

    label: str
    name: str
    """The beginning of the names of its steps."""
    model: Model
    adapter: Output | None = None
    made_by: Step | None = None
    """The training whose time its row shows."""
    baseline: bool = False


def make_row(label: str, system: System, evaluation: Step, num_completions: int) -> Row:
    """Make the row of a system from its evaluation: pass@1 and pass@num_completions."""
    columns = {}
    for k in dict.fromkeys((1, num_completions)):
        columns[f"pass@{k}"] = evaluation.metric(f"pass@{k}")
    steps = [system.made_by] if system.made_by else []
    made = system.adapter
    if made is None and system.name != "start" and isinstance(system.model, Output):
        made = system.model
    return Row(label, columns, [*steps, *evaluation.parents, evaluation], made, system.baseline)
