"""fuse: rankings of several systems -> one, with weights that are chosen on held-out queries."""

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
    """`scores`: the weighted sum of the scores above the lowest of the query's list, divided by their mean spread on
    the held-out queries; a document that a list lacks has 0. `rrf`: reciprocal rank fusion, the sum of weight /
    (60 + rank) (Cormack et al., 2009)."""
    names: Annotated[tuple[str, ...], MinLen(2)] = ("first", "second")
    """Names of the systems, for the report."""
    weights: tuple[Annotated[float, Ge(0)], ...] = ()
    """Weight of each system. Empty: chosen on the held-out queries, on 10,000 if there are more; where they are not
    better than the best system alone by more than the standard error over groups of queries, it is kept alone."""
    k: Annotated[int, Ge(1)] = 25
    """The weights are chosen by MAP at this cut-off."""


@dataclass(frozen=True)
class Inputs:
    valid: Path
    """Held-out queries with their positives."""
    valid_rankings: tuple[Path, ...]
    """The systems' rankings of the held-out queries, as written by `evaluate_retrieval`."""
    rankings: tuple[Path, ...]
    """The systems' rankings of the queries to fuse."""


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
