"""All questions on a passage at once, or one after the other? EM, F1, tokens and latency, before and after training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from jobs import prepare_tasks, sft
from jobs.pretrained import pretrained
from orchestrator.step import Metric, Row, Source, Step, Summary, step
from recipes._answers import evaluated, trained

COLUMNS = {
    "EM": "em",
    "F1": "f1",
    "Lenient": "lenient",
    "Q/Ctx": "questions a group",
    "PromptTok": "prompt tokens",
    "GenTok": "generated tokens",
    "PromptTok_API": "prompt tokens, api",
    "GenTok_API": "generated tokens, api",
    "DepTok": "dependency tokens",
    "Latency": "latency",
}


def squad(
    *,
    base: str,
    data: str,
    test: str = "",
    strategies: tuple[str, ...] = ("batch", "sequential"),
    max_train: int | None = 1000,
    max_test: int = 100,
    epochs: int = 1,
    batch: int = 2,
    learning_rate: float = 5e-5,
    method: Literal["lora", "full"] = "lora",
    rank: int = 16,
    alpha: float = 32.0,
    quantization: Literal["none", "nf4"] = "none",
    max_new_tokens: int = 96,
    seed: int = 42,
) -> Summary:
    """Finetune once for each strategy of asking a passage's questions, and compare each with the untrained model.

    The published run: --set base=Qwen/Qwen2.5-7B-Instruct

    base        the model to finetune: a folder or a hub id
    data, test  official SQuAD v1.1 JSON; without test, a tenth of the passages is held out
    strategies  batch (each question in a prompt of its own, all at once), sequential (one conversation, each question
                after the answers to those before), together (all, numbered, in one prompt)
    max_train, max_test  passages: a sample of so many, by the seed; the same test passages for every row
    epochs, batch, learning_rate  of the finetune; batch in examples per step
    method      lora, or full: all weights
    rank, alpha  LoRA's: its update is scaled by alpha / rank
    quantization  nf4: the base in 4 bits (QLoRA)
    max_new_tokens  of an answer
    seed        of samples, split and order
    """
    model = pretrained(base)
    held = Source(Path(test), label=test) if test else None
    answering: dict[str, Any] = {"max_new_tokens": max_new_tokens, "timed": True, "seed": seed}
    rows = []
    for name in strategies:
        prepared = step(
            f"{name}/prepare",
            prepare_tasks.JOB,
            data=Source(Path(data), label=data),
            test=held,
            task=f"squad-{name}",
            max_train=max_train,
            max_test=max_test,
            seed=seed,
        )
        tuned = step(
            f"{name}/sft",
            sft.JOB,
            base=model,
            train=prepared["train"],
            valid=prepared["valid"],
            epochs=epochs,
            batch=batch,
            learning_rate=learning_rate,
            method=method,
            rank=rank,
            alpha=alpha,
            quantization=quantization,
            max_new_tokens=max_new_tokens,
            seed=seed,
        )
        before = evaluated(f"{name}/untrained", model, None, prepared["test"], **answering)
        after = evaluated(f"{name}/trained", *trained(model, tuned), prepared["test"], **answering)
        rows.append(Row(f"{name}, untrained", columns(before), steps=[*before.parents, before]))
        rows.append(Row(f"{name}, trained", columns(after), steps=[tuned, *after.parents, after]))
    return Summary(rows)


def columns(evaluation: Step) -> dict[str, Metric]:
    """Tokens and seconds a passage."""
    return {title: evaluation.metric(name) for title, name in COLUMNS.items()}
