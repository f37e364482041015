"""What the recipes of systems that answer have in common: answers judged, a teacher's lessons, trained models."""

from __future__ import annotations

from typing import Any

from jobs import accept, evaluate_answers, generate, teach
from jobs.job import BadInput, Source
from jobs.pretrained import pretrained
from orchestrator.step import Output, Row, Step, step

Model = Source | Output


def evaluated(name: str, model: Model, adapter: Output | None, examples: Output, **sampling: Any) -> Step:
    """A model's answers to examples, judged."""
    answers = step(f"{name}/generate", generate.JOB, model=model, adapter=adapter, examples=examples, **sampling)
    return step(f"{name}/evaluate", evaluate_answers.JOB, completions=answers)


def lessons(
    teacher: str, student: Model, examples: Output, *, samples: int, share: float, temperature: float, **limits: Any
) -> dict[str, Any]:
    """What `sft` learns from, as its keywords train, teacher and share: the teacher's own answers that the judge
    accepts, where `samples` asks for some, else the examples as they are; and its distributions, for a share below 1.
    Without a teacher, the examples alone."""
    if not teacher:
        return {"train": examples, "teacher": None, "share": 1.0}
    if not samples and share >= 1:
        raise BadInput(
            "teacher: one given that teaches nothing; expected teacher_samples of 1 or more, or share below 1"
        )
    model = pretrained(teacher)
    learned: Output | Step = examples
    if samples:
        drawn: dict[str, Any] = {"samples": samples, "temperature": temperature if samples > 1 else 0.0}
        answers = step("lessons/generate", generate.JOB, model=model, examples=examples, **drawn, **limits)
        learned = step("lessons/accept", accept.JOB, completions=answers, examples=examples)
    if share >= 1:
        return {"train": learned, "teacher": None, "share": 1.0}
    soft = step("lessons/teach", teach.JOB, model=model, student=student, examples=learned)
    return {"train": learned, "teacher": soft, "share": share}


def trained(base: Model, tuned: Step, part: str | None = None) -> tuple[Model, Output | None]:
    """(model, adapter) after `sft`: the best, or one of its checkpoints."""
    if tuned.config.method == "full":
        return tuned[part or "model"], None
    return base, tuned[part or "adapter"]


def row(label: str, evaluation: Step, samples: int, *training: Step) -> Row:
    """pass@1 and pass@ the number of samples, with the time of training, answering and judging."""
    columns = {f"pass@{k}": evaluation.metric(f"pass@{k}") for k in dict.fromkeys((1, samples))}
    return Row(label, columns, steps=[*training, *evaluation.parents, evaluation])


def rows_of_teacher(teacher: str, examples: Output, samples: int, **sampling: Any) -> list[Row]:
    """The teacher's own line, where there is one."""
    if not teacher:
        return []
    return [
        row("teacher", evaluated("teacher", pretrained(teacher), None, examples, samples=samples, **sampling), samples)
    ]
