"""compare_systems: paired differences of systems' metrics, with confidence intervals, and queries won and lost."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, MinLen

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Job, Seed


@dataclass(frozen=True)
class Config:
    names: Annotated[tuple[str, ...], MinLen(2)]
    """Names of the systems. Each further system is compared with the first."""
    metrics: Annotated[tuple[str, ...], MinLen(1)] = ("map@25", "ndcg@10", "r@25", "mrr")
    """Metrics of `evaluate_retrieval` to compare. The first one decides which queries are won and lost."""
    samples: Annotated[int, Ge(100)] = 10_000
    """Number of bootstrap samples for an interval."""
    seed: Seed = 42
    """Seed of the bootstrap."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    """Shards of the queries. The bootstrap resamples groups, since the queries of a group are not independent."""
    evaluations: tuple[Path, ...]
    """The output of `evaluate_retrieval` for each system, on these queries."""


def check(config: Config, inputs: Inputs) -> None:
    if inputs.evaluations is not None and len(inputs.evaluations) != len(config.names):
        raise InputError(
            f"compare_systems.evaluations: {len(inputs.evaluations)} given; expected one for each of"
            f" {', '.join(config.names)}"
        )


def list_metrics(config: Config) -> list[str]:
    numbers = range(1, len(config.names))
    columns = [f"{name}{end}" for name in config.metrics for end in ("", "/interval")]
    return [f"{number}/{name}" for number in numbers for name in (*columns, "won", "lost")]


JOB = Job(
    "compare_systems",
    config=Config,
    inputs=Inputs,
    resources=("retries",),
    check=check,
    outputs=("differences.json",),
    metrics=list_metrics,
)
