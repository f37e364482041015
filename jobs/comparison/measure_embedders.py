"""measure_embedders: measure milliseconds per query on CPUs, megabytes and dimensions of embedders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from ratchet.jobs.model_checks import check_embedder_model
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.model_files import check_folder
from ratchet.orchestrator.job_interface import Job, Unit


@dataclass(frozen=True)
class Config:
    samples: Annotated[int, Ge(1), Unit("queries")] = 50
    """Number of queries, the first ones of the data, which are embedded one at a time."""
    rounds: Annotated[int, Ge(1)] = 2
    """Number of rounds over all models, every second one in reverse order. The fastest round of a model counts."""
    max_gigabytes: Annotated[float, Gt(0), Unit("GB")] = 4.0
    """Models whose weights take more than this are not run, since they are meant for GPUs."""
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
        check_embedder_model(folder, read_encoding_config(folder))


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
