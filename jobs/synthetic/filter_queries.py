"""filter_queries: keep synthetic queries that find their document again, and add them to the training queries.

Round-trip consistency (Alberti et al. 2019; for retrieval Promptagator, Dai et al. 2023, with rank 1): a query is kept
if an exact search of the corpus ranks its document at the top. Optionally, a reranker must also rank it at the top, as
in InPars-v2 (Jeronymo et al. 2023).
"""

import json
from dataclasses import dataclass
from pathlib import Path

from ratchet.jobs.synthetic.clean_queries import COUNTS, SHARD_ROWS
from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Result


@dataclass(frozen=True)
class Config:
    round_trip_rank: PositiveInt = 1
    """A query is kept if the embedder ranks its document at this rank or better."""
    reranker_rank: PositiveInt = 1
    """With `reranked`: a query is kept if its document is at this rank or better after reranking, too."""


@dataclass(frozen=True)
class Inputs:
    train: Path
    """Shards of training queries. The output contains them first, unchanged."""
    queries: Path
    """The output of `clean_queries`."""
    ranking: Path
    """The `ranking/` of an `evaluate_retrieval` of these queries."""
    reranked: Path | None = None
    """The `ranking/` of an `evaluate_retrieval` of these queries with `system=reranked`."""


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return the metrics of the training data, except the longest text: synthetic queries may be longer."""
    known = dict(parents.get("train", Result()).metrics)
    known.pop("longest_text", None)
    return Result(known)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    from ratchet.data.tables import check_queries, read_shards, write_shards
    from ratchet.jobs.synthetic.clean_queries import COUNTS_FILE

    counts = json.loads((inputs.queries / COUNTS_FILE).read_text())
    train = read_shards(inputs.train)
    table = read_shards(inputs.queries)
    queries = table.to_pylist()

    def read_ranks(folder: Path) -> list[int]:
        """Return the rank of each query's document."""
        ranking = read_shards(folder, ["id", "ranks"])
        check_queries(folder, ranking, table, inputs.queries)
        return [int(ranks[0]) for ranks in ranking["ranks"].to_pylist()]

    ranks = read_ranks(inputs.ranking)
    reranks = [1] * len(queries)
    if inputs.reranked is not None:
        reranks = read_ranks(inputs.reranked)
    found = [number for number, rank in enumerate(ranks) if rank <= config.round_trip_rank]
    passed = [number for number in found if reranks[number] <= config.reranker_rank]
    first: dict[str, int] = {}
    for number in sorted(passed, key=ranks.__getitem__):
        # Several documents may have the same query. It is kept for the document with the best rank.
        first.setdefault(queries[number]["text"].casefold(), number)
    kept = [queries[number] for number in sorted(first.values())]
    rows = [*train.to_pylist(), *kept]
    write_shards(context.out, rows, train.schema, SHARD_ROWS)
    counts["duplicates"] += len(passed) - len(kept)
    return Result(
        {
            "kept": len(kept),
            "failed_round_trip": len(queries) - len(found),
            "failed_reranker": len(found) - len(passed),
            **counts,
            "queries": len(rows),
            "documents_with_queries": len({query["positives"][0] for query in kept}),
        }
    )


JOB = Job(
    "filter_queries",
    Config,
    Inputs,
    run,
    resources=("retries",),
    check=check,
    metrics=("kept", "failed_round_trip", "failed_reranker", *COUNTS, "documents_with_queries"),
)
