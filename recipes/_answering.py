"""Steps that the recipes for answering systems share: samples, evaluation, teachers, rows of the table."""

from __future__ import annotations

from typing import Any

from ratchet.errors import InputError
from ratchet.jobs.answers import evaluate_answers, generate, prepare_tasks, rejection_sample, teacher_logprobs
from ratchet.jobs.pretrained import pretrained
from ratchet.orchestrator.step import Output, Row, Source, Step, step

Model = Source | Output


def prepare_samples(name: str, data: str | Output, test: str, **settings: Any) -> Step:
    """Split a task's file into train, valid and test. test: the official test file; empty: a part is held out."""
    source = Source.find(data) if isinstance(data, str) else data
    return step(name, prepare_tasks.JOB, data=source, test=Source.find(test, "test") if test else None, **settings)


def generate_answers(name: str, *, num_completions: int, **values: Any) -> Step:
    """Sample several completions per question, or decode greedily for one."""
    temperature = 0.7 if num_completions > 1 else 0.0
    return step(name, generate.JOB, num_completions=num_completions, temperature=temperature, **values)


def evaluate_model(
    name: str, model: Model, adapter: Output | None, samples: Output, *, num_completions: int = 1, **sampling: Any
) -> Step:
    """Generate a model's answers to the samples and verify them."""
    inputs: dict[str, Any] = {"model": model, "adapter": adapter, "samples": samples}
    answers = generate_answers(f"{name}/generate", num_completions=num_completions, **inputs, **sampling)
    ks = sorted({*evaluate_answers.Config.k, num_completions})
    return step(f"{name}/evaluate", evaluate_answers.JOB, completions=answers, k=tuple(ks))


def learn_from_teacher(
    teacher: str, student: Model, samples: Output, *, num_completions: int, ce_weight: float, **sampling: Any
) -> dict[str, Any]:
    """Return what `sft` learns from, as its keywords train, teacher and ce_weight.

    With completions, it trains on the teacher's own correct answers instead of the targets of the samples; with a
    ce_weight below 1, also on the teacher's distributions. Without a teacher, it trains on the samples alone.
    """
    if not teacher:
        return {"train": samples, "teacher": None, "ce_weight": 1.0}
    if not num_completions and ce_weight >= 1:
        raise InputError(
            f"teacher: '{teacher}' given, and nothing is learned from it; expected teacher_completions of 1 or more, or"
            " ce_weight below 1"
        )
    model = pretrained(teacher)
    train: Output | Step = samples
    if num_completions:
        answers = generate_answers(
            "teacher/generate", num_completions=num_completions, model=model, samples=samples, **sampling
        )
        train = step("teacher/rejection_sample", rejection_sample.JOB, completions=answers, samples=samples)
    if ce_weight >= 1:
        return {"train": train, "teacher": None, "ce_weight": 1.0}
    logprobs = step("teacher/logprobs", teacher_logprobs.JOB, model=model, student=student, samples=train)
    return {"train": train, "teacher": logprobs, "ce_weight": ce_weight}


def select_model(base: Model, training: Step, checkpoint: str | None = None) -> tuple[Model, Output | None]:
    """Return (model, adapter) after `sft`: the best, or one of its checkpoints."""
    if training.config.method == "full":
        return training[checkpoint or "model"], None
    return base, training[checkpoint or "adapter"]


def make_row(label: str, evaluation: Step, num_completions: int, *training: Step) -> Row:
    """Make a row with pass@1 and pass@num_completions, and the time of training, generation and evaluation."""
    columns = {f"pass@{k}": evaluation.metric(f"pass@{k}") for k in dict.fromkeys((1, num_completions))}
    return Row(label, columns, steps=[*training, *evaluation.parents, evaluation])


def make_teacher_rows(teacher: str, samples: Output, *, num_completions: int, **sampling: Any) -> list[Row]:
    """Evaluate the teacher itself, if there is one."""
    if not teacher:
        return []
    model = pretrained(teacher)
    evaluation = evaluate_model("teacher/test", model, None, samples, num_completions=num_completions, **sampling)
    return [make_row("teacher", evaluation, num_completions)]
