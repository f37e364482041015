"""sft of a small decoder: on one worker with the whole model, and on two workers with parts of it."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray import cloudpickle
from safetensors.torch import load_file
from step_process import run_step
from tiny_models import save_chat_model

from ratchet.data.tables import write_shards
from ratchet.data.tasks.task import SAMPLES, Sample, sample_to_row, write_task_name
from ratchet.jobs.answers import sft, sft_training
from ratchet.models.losses import causal_lm_loss
from ratchet.orchestrator.job_interface import Context, Resources, Result

CONFIG = sft.Config(
    epochs=2,
    batch_size=8,
    learning_rate=1e-3,
    valid_samples=7,
    max_new_tokens=16,
    max_length=100,
    dtype="float32",
    metric="eval_loss",
    allow_regression=True,
)


class SmallChunks(sft_training.SftTask):
    """Chunks of a few labels, so that their numbers differ. If there is the folder `kill`, the second worker is killed
    once, in the second epoch."""

    kill = Path("no folder")

    def __init__(self, *given: Any, **arguments: Any) -> None:
        causal_lm_loss.CHUNK = 5
        super().__init__(*given, **arguments)

    def batch(self, epoch: int, step: int) -> Any:
        if epoch == 1 and self.worker.rank == 1 and self.kill.exists():
            self.kill.rmdir()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(epoch, step)


def write_samples(folder: Path, count: int, seed: int) -> list[str]:
    """Write samples with answers of 4 or of some 40 tokens, mostly `#### 3`. Returns their texts."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        digit, length = (
            "3" if number % 3 else "5",
            0 if number % 2 else int(random.integers(30, 45)),
        )
        turn = (f"{digit} long" if length else digit, f"#### {digit}" + " so" * length)
        rows.append(sample_to_row(Sample(f"{seed}-{number}", "", "", (turn,), {"answer": digit})))
    write_shards(folder, rows, SAMPLES, 10)
    write_task_name(folder, "gsm8k")
    return [row["questions"][0] + row["targets"][0] for row in rows]


def context(folder: Path, workers: int = 1) -> Context:
    for name in ("out", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    resources = Resources(
        workers, cpus=2 / workers, gpus=0.0, retries=1, micro_batch_size=3, batch_tokens=90
    )
    return Context("sft", "ab" * 32, 1, folder / "out", folder / "work", resources)


def train(folder: Path, config: sft.Config, inputs: sft.Inputs, workers: int = 1) -> Result:
    sft.check(config, inputs, {})
    return run_step(sft.run, context(folder, workers), config, inputs)


def make_inputs(folder: Path) -> sft.Inputs:
    """A base that has begun to learn the answers. Workers cannot import this file. Ray must be running."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    texts = write_samples(folder / "train", 20, 0)
    write_samples(folder / "valid", 9, 1)
    save_chat_model(folder / "fresh", texts)
    fresh = sft.Inputs(folder / "fresh", folder / "train", folder / "valid")
    config = dataclasses.replace(
        CONFIG, method="full", epochs=15, learning_rate=1e-2, eval_steps=45
    )
    train(folder / "base", config, fresh)
    return dataclasses.replace(fresh, base=folder / "base/out/model")


def check_equal(found: Result, expected: Result, weights: str, made: Path, whole: Path) -> None:
    losses, others = (result.curves["loss against step"]["y"] for result in (found, expected))
    assert len(losses) == 6
    assert losses == pytest.approx(others, rel=1e-4)
    (rows, expected_rows) = (result.tables["epochs"] for result in (found, expected))
    for row, other in zip(rows, expected_rows, strict=True):
        assert row["valid/eval_loss"] == pytest.approx(other["valid/eval_loss"], rel=1e-4)
        assert row["valid/accuracy"] == other["valid/accuracy"]
    assert 0 < rows[0]["valid/accuracy"] < 1
    kept, others = load_file(made / "out" / weights), load_file(whole / "out" / weights)
    assert set(kept) == set(others)
    for name, value in kept.items():
        # By norm: Adam makes much of the rounding of a gradient that is nearly zero.
        assert (
            torch.linalg.norm(value - others[name]) < 1e-3 * torch.linalg.norm(others[name]) + 1e-6
        ), name
