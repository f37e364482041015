"""Countdown: train on solutions or distil from a teacher; pass@k and kinds of failures of every checkpoint."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval

from ratchet.jobs.answers import init_decoder, make_countdown
from ratchet.orchestrator.step import Output, Seed, Source, Summary, step
from ratchet.recipes.parts.answering import finetune_and_compare, prepare_samples
from ratchet.recipes.parts.models import find_model


def countdown(
    *,
    base: str = "",
    data: str = "",
    test: str = "",
    max_test: Annotated[int, Ge(1)] = 1024,
    checkpoints: tuple[Annotated[int, Ge(1)], ...] = (500, 1000, 1500, 2000, 3000),
    method: Literal["lora", "full"] = "lora",
    num_completions: Annotated[int, Ge(1)] = 4,
    teacher: str = "",
    teacher_completions: Annotated[int, Ge(0)] = 0,
    ce_weight: Annotated[float, Interval(ge=0, le=1)] = 0.5,
    baselines: tuple[str, ...] = (),
    grpo_steps: tuple[Annotated[int, Ge(1)], ...] = (),
    seed: Seed = 42,
) -> Summary:
    """Make or read Countdown tasks, finetune on their solutions (or a teacher's), and verify each checkpoint's answers.

    The published run: --settings published/countdown

    base        the model to finetune: a folder or a hub id. Empty: a decoder of 4 million random weights is
                made (init_decoder) and trained from scratch
    data, test  JSONL or Parquet with nums and target. Without data, tasks are generated (make_countdown), of which a
                tenth is held out
    max_test    number of test tasks
    checkpoints  training steps after which the model is saved and evaluated, at most the number of training steps
    method      lora, or full: all weights. A model that is made here is always trained in full
    num_completions  completions per test task, for pass@num_completions
    teacher     a larger model to distill from, with its answers (teacher_completions) or its distributions (ce_weight)
    teacher_completions  the teacher's completions per task. The first correct one is trained on. 0: the solutions
    ce_weight   weight of the cross-entropy. The rest is on the KL divergence from the teacher's distributions
    baselines   further models to evaluate as they are
    grpo_steps  training steps of GRPO, from the result of sft, after which its model is saved and evaluated too; the
                last one ends it. Empty: no GRPO
    seed        seed of tasks, split, order and sampling

    Settings of the jobs: --set sft.epochs=3, --set generate.max_new_tokens=512 and the like.
    """
    tasks = data or step("tasks", make_countdown.JOB, seed=seed)["tasks"]
    prepared = prepare_samples("prepare", tasks, test, task="countdown", max_test=max_test, seed=seed)
    model: Source | Output = (
        find_model(base) if base else Output(step("base", init_decoder.JOB, samples=prepared["train"], seed=seed))
    )
    rate = 1e-3 if not base else 1e-4 if method == "lora" else None
    distilled: dict[str, Any] = {"teacher": teacher, "teacher_completions": teacher_completions, "ce_weight": ce_weight}
    values: dict[str, Any] = {"checkpoints": checkpoints, "epochs": 6, "learning_rate": rate, "max_new_tokens": 256}
    values |= {"method": method if base else "full", "num_completions": num_completions, "seed": seed}
    values |= {"grpo_steps": grpo_steps, "grpo_rate": None if base else 3e-5}
    return finetune_and_compare(model, prepared, baselines=baselines, **distilled, **values)
