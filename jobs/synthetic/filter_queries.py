"""filter_queries: keep synthetic queries that find their document again, and add them to the training queries.

Round-trip consistency (Alberti et al. 2019; for retrieval Promptagator, Dai et al. 2023, with rank 1): a query is kept
if an exact search of the corpus ranks its document at the top. Optionally, a reranker must also rank it at the top, as
in InPars-v2 (Jeronymo et al. 2023).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from ratchet.errors import InputError
from ratchet.jobs.synthetic.clean_queries import COUNTS
from ratchet.orchestrator.job_interface import Context, Job, Parents, Result, Unit


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


def check(config: Config, inputs: Inputs, parents: Parents) -> Result:
    """Return the metrics of the training data, except the longest text: synthetic queries may be longer."""
    if "train" in parents:
        known = parents["train"].metrics
    else:
        known = {}
    return Result({name: value for name, value in known.items() if name != "longest_text"})


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import pyarrow as pa

    from ratchet.data.tables import read_shards, read_texts, write_shards
    from ratchet.jobs.synthetic.clean_queries import COUNTS_FILE

    counts: dict[str, int] = json.loads((inputs.queries / COUNTS_FILE).read_text())
    train = read_shards(inputs.train)
    queries = read_shards(inputs.queries).to_pylist()
    names = [query["id"] for query in queries]
    ranks = _read_ranks(inputs.ranking, names)
    found = [rank <= config.round_trip_rank for rank in ranks]
    confirmed = [True] * len(queries)
    if inputs.reranked is not None:
        confirmed = []
        for rank in _read_ranks(inputs.reranked, names):
            confirmed.append(rank <= config.reranker_rank)
    passed = [number for number in range(len(queries)) if found[number] and confirmed[number]]
    first: dict[str, int] = {}
    for number in sorted(passed, key=lambda number: ranks[number]):
        # Several documents may have the same query. It is kept for the document with the best rank.
        first.setdefault(queries[number]["text"].casefold(), number)
    kept = sorted(first.values())
    rows = [*train.to_pylist(), *(queries[number] for number in kept)]
    write_shards(context.out, rows, train.schema, config.shard_rows)
    counts["duplicates"] += len(passed) - len(kept)
    metrics: dict[str, float | int | str] = {
        "kept": len(kept),
        "failed_round_trip": found.count(False),
        "failed_reranker": sum(
            one and not other for one, other in zip(found, confirmed, strict=True)
        ),
        **counts,
        "queries": len(rows),
        "documents_with_queries": len({queries[number]["positives"][0] for number in kept}),
    }
    failed = sorted({*range(len(queries))} - {*passed})
    shown = {
        "kept queries": kept[: config.num_cases],
        "queries that failed": failed[: config.num_cases],
    }
    named = [queries[number]["positives"][0] for numbers in shown.values() for number in numbers]
    text_of = read_texts(inputs.corpus, pa.chunked_array([named], pa.string()))
    cases = {}
    for title, numbers in shown.items():
        if numbers:
            cases[title] = [
                _make_case(queries[number], ranks[number], text_of) for number in numbers
            ]
    return Result(metrics, cases=cases)


def _read_ranks(ranking: Path, names: Sequence[str]) -> list[int]:
    """Return the rank of each query's document. Raises InputError for a ranking of other queries."""
    from ratchet.data.tables import read_shards

    table = read_shards(ranking, ["id", "ranks"])
    if table["id"].to_pylist() != names:
        raise InputError(
            f"{ranking}: ranks other queries; expected those of filter_queries.queries in the same order"
        )
    found: list[int] = []
    for ranks in table["ranks"].to_pylist():
        found.append(int(ranks[0]))
    return found


def _make_case(query: dict[str, Any], rank: int, text_of: Mapping[str, str]) -> dict[str, Any]:
    text = text_of[query["positives"][0]]
    return {
        "title": query["text"],
        "columns": {f"document, at rank {rank}": [{"text": text, "good": rank == 1}]},
    }


JOB = Job(
    "filter_queries",
    config=Config,
    inputs=Inputs,
    run=run,
    resources=("retries",),
    check=check,
    metrics=lambda config: (
        "kept",
        "failed_round_trip",
        "failed_reranker",
        *COUNTS,
        "documents_with_queries",
    ),
)
