"""compare_checkpoints: compare losses, gradient norm, pass@k and failures of a run's checkpoints, and find collapses.

The best checkpoint is selected on the held-out samples of training (`valid`), never on the test questions.
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
    """The output of `sft` or `grpo`."""
    evaluations: tuple[Path, ...]
    """The output of `evaluate_answers` for each checkpoint, on the same samples."""
    before: Path | None = None
    """The output of `evaluate_answers` for the model before training. None: it is not in the comparison."""


def check(config: Config, inputs: Inputs) -> None:
    if list(config.steps) != sorted(set(config.steps)) or not config.steps:
        raise InputError(f"compare_checkpoints.steps: {config.steps} given; expected increasing training steps")
    if inputs.evaluations is not None and len(inputs.evaluations) != len(config.steps):
        raise InputError(
            f"compare_checkpoints.evaluations: {len(inputs.evaluations)} given, for {len(config.steps)} checkpoints;"
            " expected one per checkpoint"
        )


JOB = Job("compare_checkpoints", config=Config, inputs=Inputs, resources=("retries",), check=check)
