"""measure_embedders: what embedders cost on CPUs: milliseconds per query, megabytes, dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from ratchet.models.model_files import check_folder
from ratchet.orchestrator.job_interface import Job, Unit


@dataclass(frozen=True)
class Config:
    samples: Annotated[int, Ge(1), Unit("queries")] = 50
    """Queries that are embedded one at a time, the first ones of the data."""
    rounds: Annotated[int, Ge(1)] = 2
    """Rounds over all models, every other one in reverse. The fastest round of a model counts."""
    max_gigabytes: Annotated[float, Gt(0), Unit("GB")] = 4.0
    """Models with more weights are not run: they belong on GPUs."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of weights and arithmetic."""


@dataclass(frozen=True)
class Inputs:
    models: tuple[Path, ...]
    """Hugging Face model folders. One is in memory at a time."""
    queries: Path
    """Shards of queries."""


def check(config: Config, inputs: Inputs) -> None:
    for folder in inputs.models or ():
        check_folder(folder)


JOB = Job(
    "measure_embedders",
    config=Config,
    inputs=Inputs,
    resources=("cpus", "memory", "accelerator", "labels", "retries"),
    check=check,
    single_process=True,
    outputs=("latency.json",),
    metrics=lambda config: [f"*/{name}" for name in ("milliseconds", "megabytes", "dimensions", "queries")],
)
