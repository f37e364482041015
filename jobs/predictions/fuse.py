"""fuse: fuse the rankings of several systems into one, with weights chosen on held-out queries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, MinLen

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Job


@dataclass(frozen=True)
class Config:
    method: Literal["scores", "rrf"] = "scores"
    """`scores`: weighted sum of normalized scores. A system's score minus the lowest one of the query's list is divided
    by the mean score range of the system's lists on the held-out queries; documents outside a list get 0. `rrf`:
    reciprocal rank fusion, the sum of weight / (60 + rank) (Cormack et al., 2009)."""
    names: Annotated[tuple[str, ...], MinLen(2)] = ("first", "second")
    """Names of the systems, for the report."""
    weights: tuple[Annotated[float, Ge(0)], ...] = ()
    """Weight of each system. Empty: choose the weights with the best MAP on the held-out queries (on at most 10,000).
    If these do not beat the best single system by more than the standard error over groups, only that one is used."""
    k: Annotated[int, Ge(1)] = 25
    """Cut-off of the MAP that chooses the weights."""


@dataclass(frozen=True)
class Inputs:
    valid: Path
    """Held-out queries with their positives."""
    valid_rankings: tuple[Path, ...]
    """Each system's ranking for the held-out queries, as written by `evaluate_retrieval`."""
    rankings: tuple[Path, ...]
    """Each system's ranking for the queries whose rankings are fused."""


def check(config: Config, inputs: Inputs) -> None:
    for name, given in (
        ("valid_rankings", inputs.valid_rankings),
        ("rankings", inputs.rankings),
        ("weights", config.weights or config.names),
    ):
        if given is not None and len(given) != len(config.names):
            raise InputError(f"fuse.{name}: {len(given)} given; expected one for each of {', '.join(config.names)}")
    if config.weights and not any(config.weights):
        raise InputError("fuse.weights: only zeros given; expected one above 0")


JOB = Job(
    "fuse",
    config=Config,
    inputs=Inputs,
    resources=("retries",),
    check=check,
    outputs=("ranking",),
    metrics=lambda config: (f"valid/map@{config.k}", "weight/*"),
)
