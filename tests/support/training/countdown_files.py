"""Countdown tasks, a tiny decoder, and settings to train it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ratchet.jobs.answers import prepare_tasks, sft
from ratchet.jobs.synthetic import init_decoder, make_countdown
from ratchet.orchestrator.job_interface import Context, Resources

TINY = init_decoder.Config(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=400
)

FAST = sft.Config(
    epochs=2,
    batch_size=16,
    learning_rate=3e-3,
    method="full",
    valid_samples=4,
    max_new_tokens=40,
    dtype="float32",
    metric="eval_loss",
)


def make_countdown_files(folder: Path) -> Path:
    """Write tasks/, prepared/ and base/ (a tiny decoder), and return the folder."""

    def context(name: str) -> Context:
        (folder / name).mkdir()
        (folder / f"{name}-work").mkdir()
        return Context(
            name, "0" * 64, 1, folder / name, folder / f"{name}-work", Resources(1, 2.0, 0.0)
        )

    make_countdown.JOB.run(
        context("tasks"),
        make_countdown.Config(tasks=120, sizes=(2,), largest=20),
        make_countdown.Inputs(),
    )
    config = prepare_tasks.Config("countdown", shard_rows=10, validation_fraction=0.1)
    given = prepare_tasks.Inputs(folder / "tasks/tasks")
    prepare_tasks.check(config, given, {})
    result = prepare_tasks.JOB.run(context("prepared"), config, given)
    assert [result.metrics[name] for name in ("train", "valid", "test")] == [97, 11, 12]
    init_decoder.JOB.run(context("base"), TINY, init_decoder.Inputs(folder / "prepared/train"))
    return folder


def inputs(made: Path, **more: Any) -> sft.Inputs:
    return sft.Inputs(made / "base", made / "prepared/train", made / "prepared/valid", **more)
