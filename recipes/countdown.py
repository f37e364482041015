"""Countdown: train on solutions or distill a teacher; pass@k and failure labels of every checkpoint."""

from typing import Literal

from ratchet.jobs.synthetic import init_decoder, make_countdown
from ratchet.orchestrator.step import (
    Fraction,
    NonNegativeInt,
    Output,
    PositiveInt,
    Seed,
    Summary,
    step,
)
from ratchet.recipes.parts.answering import finetune_and_compare, prepare_samples
from ratchet.recipes.parts.models import choose_model


def countdown(
    *,
    base: str = "",
    data: str = "",
    test: str = "",
    max_test: PositiveInt = 1024,
    checkpoints: tuple[PositiveInt, ...] = (500, 1000, 1500, 2000, 3000),
    method: Literal["lora", "full"] = "lora",
    num_completions: PositiveInt = 4,
    teacher: str = "",
    teacher_completions: NonNegativeInt = 0,
    ce_weight: Fraction = 0.5,
    baselines: tuple[str, ...] = (),
    distill_steps: tuple[PositiveInt, ...] = (),
    lmbda: Fraction = 0.5,
    grpo_steps: tuple[PositiveInt, ...] = (),
    seed: Seed = 42,
) -> Summary:
    """Make or read Countdown tasks, finetune on their solutions (or a teacher's), and verify each checkpoint's answers.

    The published run: --settings published/countdown

    base        the model to finetune: a folder or a hub id. Empty: create a decoder with 4 million random weights
                (init_decoder) and train it from scratch
    data, test  JSONL or Parquet with nums and target. Without data, tasks are generated (make_countdown). Without test,
                a tenth of the tasks is held out
    max_test    maximum number of test tasks
    checkpoints  training steps of sft after which the model is saved and evaluated; none may be after the last step
    method      lora (train a LoRA adapter) or full (train all weights). Without base, always full
    num_completions  completions per test task, for pass@num_completions
    teacher     a larger model to distill: from its answers (teacher_completions) or its distributions (ce_weight)
    teacher_completions  completions of the teacher per task. sft trains on the first correct one. 0: on the solutions
    ce_weight   with a teacher: the loss is ce_weight * CE + (1 - ce_weight) * KL from the teacher's distributions
    baselines   further models to evaluate without training
    distill_steps  training steps of on-policy distillation (distill) after which the model is saved and evaluated. It
                takes the place of sft, and ends at the last of these steps. Empty: sft
    lmbda       fraction of these steps whose answers are the student's own, not the targets (lambda in the paper)
    grpo_steps  training steps of GRPO after which its model is saved and evaluated. GRPO starts from the trained model
                and ends at the last of these steps. Empty: no GRPO
    seed        seed of the tasks, the split, the order of the training data and the sampling

    Job settings are set as --set sft.epochs=3, --set generate.max_new_tokens=512 and so on."""
    tasks = data or step("tasks", make_countdown.JOB, seed=seed)["tasks"]
    prepared = prepare_samples(
        "prepare", tasks, test, task="countdown", max_test=max_test, seed=seed
    )
    if base:
        model = choose_model(base)
        rate = 1e-4 if method == "lora" else None
        grpo_rate = None
        distill_rate = None
    else:
        model = Output(step("base", init_decoder.JOB, samples=prepared["train"], seed=seed))
        method = "full"
        rate = 1e-3
        grpo_rate = 3e-5
        distill_rate = 1e-3
    return finetune_and_compare(
        model,
        prepared,
        baselines=baselines,
        num_completions=num_completions,
        teacher=teacher,
        teacher_completions=teacher_completions,
        ce_weight=ce_weight,
        distill_steps=distill_steps,
        lmbda=lmbda,
        grpo_steps=grpo_steps,
        grpo_rate=grpo_rate,
        distill_rate=distill_rate,
        checkpoints=checkpoints,
        epochs=6,
        learning_rate=rate,
        method=method,
        max_new_tokens=256,
        seed=seed,
    )
