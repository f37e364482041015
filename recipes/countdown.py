"""How far does training on solutions carry, and where does it break? Countdown: pass@k and failures by checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from jobs import compare_checkpoints, make_countdown, make_decoder, prepare_tasks, sft
from jobs.pretrained import pretrained
from orchestrator.step import Output, Source, Summary, step
from recipes._answers import evaluated, lessons, row, rows_of_teacher, trained


def countdown(
    *,
    base: str = "",
    data: str = "",
    test: str = "",
    tasks: int = 10_000,
    sizes: tuple[int, ...] = (3, 4),
    max_test: int = 1024,
    checkpoints: tuple[int, ...] = (500, 1000, 1500, 2000, 3000),
    epochs: int = 6,
    batch: int = 16,
    learning_rate: float | None = None,
    method: Literal["lora", "full"] = "lora",
    rank: int = 16,
    alpha: float = 32.0,
    packing: bool = False,
    quantization: Literal["none", "nf4"] = "none",
    samples: int = 4,
    temperature: float = 0.7,
    max_new_tokens: int = 256,
    teacher: str = "",
    teacher_samples: int = 0,
    share: float = 0.5,
    seed: int = 42,
) -> Summary:
    """Make or read Countdown tasks, finetune on their solutions (or a teacher's), and judge every checkpoint's answers.

    The published run: --set base=Qwen/Qwen2.5-1.5B, and --set teacher=Qwen/Qwen2.5-7B-Instruct --set teacher_samples=4
    for distillation.

    base        the model to finetune: a folder or a hub id; none: one of 4 million weights is made, and trained from
                nothing
    data, test  JSONL or Parquet with nums and target; without data, tasks are made anew, all different
    tasks, sizes  how many are made, and of how many numbers; a tenth of them is held out
    max_test    tasks that every checkpoint is judged on
    checkpoints  steps after which the model is kept and judged; the last must not lie behind the last step
    epochs, batch, learning_rate  of the finetune; batch in examples per step; the rate, where none is
                given, is 1e-4, or 1e-3 for a model that is made
    method      lora, or full: all weights, as always where the model is made
    rank, alpha  LoRA's: its update is scaled by alpha / rank
    packing     several examples a row
    quantization  nf4: the base in 4 bits (QLoRA)
    samples, temperature, max_new_tokens  of the answers that are judged; pass@samples needs so many
    teacher     a larger model that teaches by its answers (teacher_samples) and its distributions (share below 1)
    teacher_samples  answers of the teacher to each task; the first that the judge accepts is trained on; 0: solutions
    share       of the loss on the targets, where there is a teacher; the rest is on its distributions
    seed        of tasks, split, order and samples
    """
    fresh = step("tasks", make_countdown.JOB, tasks=tasks, sizes=sizes, seed=seed)
    held = Source(Path(test), label=test) if test else None
    prepared = step(
        "prepare",
        prepare_tasks.JOB,
        data=Source(Path(data), label=data) if data else fresh["tasks"],
        test=held,
        task="countdown",
        max_test=max_test,
        seed=seed,
    )
    limits: dict[str, Any] = {"max_new_tokens": max_new_tokens, "seed": seed}
    sampling: dict[str, Any] = limits | {"samples": samples, "temperature": temperature if samples > 1 else 0.0}
    model: Source | Output = (
        pretrained(base) if base else Output(step("base", make_decoder.JOB, examples=prepared["train"], seed=seed))
    )
    learned = lessons(
        teacher, model, prepared["train"], samples=teacher_samples, share=share, temperature=temperature, **limits
    )
    tuned = step(
        "sft",
        sft.JOB,
        base=model,
        valid=prepared["valid"],
        **learned,
        checkpoints=checkpoints,
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate or (1e-4 if base else 1e-3),
        method=method if base else "full",
        rank=rank,
        alpha=alpha,
        packing=packing,
        quantization=quantization,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
    before = evaluated("start", model, None, prepared["test"], **sampling)
    rows = [row("untrained", before, samples)]
    judged = []
    for number in checkpoints:
        name = f"checkpoint-{number}"
        judged.append(evaluated(name, *trained(model, tuned, name), prepared["test"], **sampling))
        rows.append(row(f"step {number}", judged[-1], samples))
    best = evaluated("best", *trained(model, tuned), prepared["test"], **sampling)
    rows.append(row("kept", best, samples, tuned))
    rows += rows_of_teacher(teacher, prepared["test"], **sampling)
    goals = []
    if checkpoints:
        goals.append(
            step(
                "checkpoints",
                compare_checkpoints.JOB,
                training=tuned,
                evaluations=tuple(judged),
                before=before,
                steps=checkpoints,
            )
        )
    return Summary(rows, goals=goals)
