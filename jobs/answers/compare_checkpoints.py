"""compare_checkpoints: losses, gradient norm, pass@k and failures of a training run's checkpoints; finds collapses.

The best checkpoint is that of the held-out rows of training. The test questions do not choose.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Job


@dataclass(frozen=True)
class Config:
    steps: tuple[Annotated[int, Ge(1)], ...]
    """Training steps of the checkpoints, in the order of `evaluations`."""


@dataclass(frozen=True)
class Inputs:
    training: Path
    """The output of `sft`."""
    evaluations: tuple[Path, ...]
    """The output of `evaluate_answers` for each checkpoint, on the same samples."""
    before: Path | None = None
    """The evaluation of the model before training."""


def check(config: Config, inputs: Inputs) -> None:
    if list(config.steps) != sorted(set(config.steps)) or not config.steps:
        raise InputError(f"compare_checkpoints.steps: {config.steps} given; expected increasing training steps")
    if inputs.evaluations is not None and len(inputs.evaluations) != len(config.steps):
        raise InputError(
            f"compare_checkpoints.evaluations: {len(inputs.evaluations)} given, for {len(config.steps)} checkpoints;"
            " expected one per checkpoint"
        )


JOB = Job("compare_checkpoints", config=Config, inputs=Inputs, resources=("retries",), check=check)
