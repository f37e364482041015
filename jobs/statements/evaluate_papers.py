"""evaluate_papers: measure how well a statement retrieves the other statements of its paper, over all statements.

Each statement is a query that ranks all statements except itself. Shards are distributed over workers. Ranks are exact,
and counted without sorting (`ratchet.models.search.ranks`). If a paper has only one statement, this is not a query.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, MinLen

from ratchet.orchestrator.job_interface import MAP_RESOURCES, Job, Seed


@dataclass(frozen=True)
class Config:
    system: Literal["dense", "bm25"] = "dense"
    """What ranks the statements. `dense`: inner products of the vectors. `bm25`: BM25, which is slow
    for more than about 100,000 statements."""
    k: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (1, 5, 10, 50, 100, 1000)
    """Cut-offs of the metrics."""
    max_queries: Annotated[int, Ge(1)] | None = None
    """Maximum number of queries, sampled at random; each still ranks all statements. None: no sampling."""
    seed: Seed = 42
    """Seed of the sample of queries."""


@dataclass(frozen=True)
class Inputs:
    statements: Path
    """Shards of statements, as written by `prepare_papers`."""
    embeddings: Path | None = None
    """Vectors of the statements, as written by `embed`; for `dense` only."""
    selection: Path | None = None
    """The `selection.json` of the finetuning step whose merged model is evaluated on its held-out statements. Adds the
    metric `merging_cost`: the selecting metric before merging minus after merging."""


def list_metrics(config: Config) -> list[str]:
    cutoffs = []
    for kind in ("p", "r"):
        for k in config.k:
            cutoffs.append(f"{kind}@{k}")
    return ["mrr", "map", *cutoffs, "statements", "queries", "*/interval", "merging_cost", "merging_cost/queries"]


JOB = Job(
    "evaluate_papers",
    config=Config,
    inputs=Inputs,
    resources=MAP_RESOURCES,
    is_worker=lambda config: True,
    outputs=("ranks",),
    metrics=list_metrics,
)
