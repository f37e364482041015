"""rejection_sample: make training samples of a teacher's correct answers. The teacher may have any vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.orchestrator.job_interface import Job, Result


@dataclass(frozen=True)
class Config:
    max_per_sample: Annotated[int, Ge(1)] = 1
    """Maximum number of distinct correct answers to keep per sample: the first ones in the order of generation."""


@dataclass(frozen=True)
class Inputs:
    completions: Path
    """A teacher's answers to `samples`, written by `generate`."""
    samples: Path
    """Samples written by `prepare_tasks`, whose targets are replaced by the answers."""


JOB = Job(
    "rejection_sample",
    config=Config,
    inputs=Inputs,
    resources=("retries",),
    predict=lambda config, inputs, parents: Result(parents["samples"].metrics if "samples" in parents else {}),
    metrics=lambda config: ("samples", "unsolved", "kept"),
)
