"""filter_queries: keep generated queries that find their document again, and add them to the training queries.

Round-trip consistency (Alberti et al. 2019; for retrieval Promptagator, Dai et al. 2023, with rank 1): a query is kept
if an exact search of the corpus ranks its document among the first. A reranker may judge too, as in InPars-v2 (Jeronymo
et al. 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from ratchet.jobs.synthetic.clean_queries import COUNTS
from ratchet.orchestrator.job_interface import Job, Parents, Result, Unit


@dataclass(frozen=True)
class Config:
    round_trip_rank: Annotated[int, Ge(1)] = 1
    """Largest rank of a query's document in the embedder's ranking of the corpus."""
    reranker_rank: Annotated[int, Ge(1)] = 1
    """Largest rank of a query's document after reranking, where `reranked` is given."""
    num_cases: Annotated[int, Ge(0)] = 3
    """Kept queries, and queries that failed, that the report shows."""
    shard_rows: Annotated[int, Ge(1), Unit("rows")] = 4096
    """Rows per shard."""


@dataclass(frozen=True)
class Inputs:
    train: Path
    """Shards of training queries, which come first in the output, unchanged."""
    corpus: Path
    """Shards of documents."""
    queries: Path
    """The output of `clean_queries`."""
    ranking: Path
    """The `ranking/` of an `evaluate_retrieval` of these queries."""
    reranked: Path | None = None
    """The `ranking/` of an `evaluate_retrieval` of these queries with `system=reranked`."""


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return what is known of the data. How many queries are added, and how long they are, is not."""
    known = parents["train"].metrics if "train" in parents else {}
    return Result({name: value for name, value in known.items() if name != "longest_text"})


JOB = Job(
    "filter_queries",
    config=Config,
    inputs=Inputs,
    resources=("retries",),
    predict=predict,
    metrics=lambda config: ("kept", "failed_round_trip", "failed_reranker", *COUNTS, "documents_with_queries"),
)
