"""What the recipes of systems that answer have in common: answers judged, a teacher's lessons, trained models."""

from __future__ import annotations

from typing import Any

from jobs import accept, evaluate_answers, generate, teach
from jobs.job import BadInput, Source
from orchestrator.step import Metric, Output, Step, step

Model = Source | Output


def evaluated(name: str, model: Model, adapter: Output | None, examples: Output, **sampling: Any) -> Step:
    """A model's answers to examples, judged."""
    answers = step(f"{name}/generate", generate.JOB, model=model, adapter=adapter, examples=examples, **sampling)
    return step(f"{name}/evaluate", evaluate_answers.JOB, completions=answers)


def taught(
    teacher: Model, student: Model, examples: Output, *, samples: int, distributions: bool, **sampling: Any
) -> tuple[Output | Step, Step | None]:
    """(what to train on, the teacher's distributions over it): the teacher's own answers that the judge accepts, where
    `samples` asks for some, else the examples as they are."""
    if not samples and not distributions:
        raise BadInput(
            "teacher: one given that teaches nothing; expected teacher_samples of 1 or more, or share below 1"
        )
    learned: Output | Step = examples
    if samples:
        answers = step("lessons/generate", generate.JOB, model=teacher, examples=examples, samples=samples, **sampling)
        learned = step("lessons/accept", accept.JOB, completions=answers, examples=examples)
    soft = step("lessons/teach", teach.JOB, model=teacher, student=student, examples=learned) if distributions else None
    return learned, soft


def trained(base: Model, tuned: Step, part: str | None = None) -> tuple[Model, Output | None]:
    """(model, adapter) after `sft`: the best, or one of its checkpoints."""
    if tuned.config.method == "full":
        return tuned[part or "model"], None
    return base, tuned[part or "adapter"]


def passes(evaluation: Step, samples: int) -> dict[str, Metric]:
    """pass@1, and pass@ the number of samples."""
    return {f"pass@{k}": evaluation.metric(f"pass@{k}") for k in dict.fromkeys((1, samples))}
