"""Word problems: finetuning on the official solutions, and what it is worth on the test set."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from jobs import prepare_tasks, sft
from jobs.pretrained import pretrained
from orchestrator.step import Source, Summary, step
from recipes._answers import evaluated, lessons, row, rows_of_teacher, trained


def gsm8k(
    *,
    base: str,
    data: str,
    test: str = "",
    task: Literal["gsm8k", "gsm8k-boxed"] = "gsm8k",
    max_train: int | None = None,
    max_test: int | None = None,
    epochs: int = 2,
    batch: int = 16,
    learning_rate: float = 1e-4,
    method: Literal["lora", "full"] = "lora",
    rank: int = 16,
    alpha: float = 32.0,
    packing: bool = False,
    quantization: Literal["none", "nf4"] = "none",
    samples: int = 1,
    temperature: float = 0.7,
    max_new_tokens: int = 400,
    teacher: str = "",
    teacher_samples: int = 0,
    share: float = 0.5,
    seed: int = 42,
) -> Summary:
    """Finetune on GSM8K's solutions, the loss on the answers alone, and judge the answers before and after.

    base        the model to finetune: a folder or a hub id
    data, test  the official train.jsonl and test.jsonl; without test, a tenth is held out
    task        how answers end: gsm8k, '#### 42' as the official ones, or gsm8k-boxed; for training and judging alike
    max_train, max_test  a sample of so many problems
    epochs, batch, learning_rate  of the finetune; batch in examples per step
    method      lora, or full: all weights
    rank, alpha  LoRA's: its update is scaled by alpha / rank
    packing     several examples a row
    quantization  nf4: the base in 4 bits (QLoRA)
    samples, temperature, max_new_tokens  of the answers that are judged; one sample is the likeliest answer
    teacher     a larger model that teaches by its answers (teacher_samples) and its distributions (share below 1)
    teacher_samples  answers of the teacher to each problem; the first that the judge accepts is trained on; 0: none
    share       of the loss on the targets, where there is a teacher; the rest is on its distributions
    seed        of split, order and samples
    """
    prepared = step(
        "prepare",
        prepare_tasks.JOB,
        data=Source(Path(data), label=data),
        test=Source(Path(test), label=test) if test else None,
        task=task,
        max_train=max_train,
        max_test=max_test,
        seed=seed,
    )
    limits: dict[str, Any] = {"max_new_tokens": max_new_tokens, "seed": seed}
    sampling: dict[str, Any] = limits | {"samples": samples, "temperature": temperature if samples > 1 else 0.0}
    model = pretrained(base)
    learned = lessons(
        teacher, model, prepared["train"], samples=teacher_samples, share=share, temperature=temperature, **limits
    )
    tuned = step(
        "sft",
        sft.JOB,
        base=model,
        valid=prepared["valid"],
        **learned,
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        method=method,
        rank=rank,
        alpha=alpha,
        packing=packing,
        quantization=quantization,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    before = evaluated("start", model, None, prepared["test"], **sampling)
    after = evaluated("trained", *trained(model, tuned), prepared["test"], **sampling)
    rows = [
        row("untrained", before, samples),
        row("trained", after, samples, tuned),
    ]
    rows += rows_of_teacher(teacher, prepared["test"], **sampling)
    return Summary(rows)
