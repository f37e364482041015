"""filter_queries: keep synthetic queries that find their document again, and add them to the training queries.

Round-trip consistency (Alberti et al. 2019; for retrieval Promptagator, Dai et al. 2023, with rank 1): a query is kept
if an exact search of the corpus ranks its document at the top. Optionally, a reranker must also rank it at the top, as
in InPars-v2 (Jeronymo et al. 2023).
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
    """A query is kept if the embedder ranks its document at this rank or better."""
    reranker_rank: Annotated[int, Ge(1)] = 1
    """With `reranked`: a query is kept if its document is at this rank or better after reranking, too."""
    num_cases: Annotated[int, Ge(0)] = 3
    """Number of kept queries, and number of rejected queries, that the report shows."""
    shard_rows: Annotated[int, Ge(1), Unit("rows")] = 4096
    """Rows per shard."""


@dataclass(frozen=True)
class Inputs:
    train: Path
    """Shards of training queries. The output contains them first, unchanged."""
    corpus: Path
    """Shards of documents."""
    queries: Path
    """The output of `clean_queries`."""
    ranking: Path
    """The `ranking/` of an `evaluate_retrieval` of these queries."""
    reranked: Path | None = None
    """The `ranking/` of an `evaluate_retrieval` of these queries with `system=reranked`."""


def predict(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return the metrics of the training data, except the longest text: synthetic queries may be longer."""
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
