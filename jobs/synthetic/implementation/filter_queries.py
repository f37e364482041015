"""Implementation of `filter_queries`: selects queries by the ranks of their documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ratchet.data.tables import read_shards, read_texts, write_shards
from ratchet.errors import InputError
from ratchet.jobs.synthetic.clean_queries import COUNTS_FILE
from ratchet.jobs.synthetic.filter_queries import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    counts: dict[str, int] = json.loads((inputs.queries / COUNTS_FILE).read_text())
    train, queries = read_shards(inputs.train), read_shards(inputs.queries).to_pylist()
    names = [query["id"] for query in queries]
    ranks = _read_ranks(inputs.ranking, names)
    found = [rank <= config.round_trip_rank for rank in ranks]
    confirmed = [True] * len(queries)
    if inputs.reranked is not None:
        confirmed = [rank <= config.reranker_rank for rank in _read_ranks(inputs.reranked, names)]
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
        "failed_reranker": sum(one and not other for one, other in zip(found, confirmed, strict=True)),
        **counts,
        "queries": len(rows),
        "documents_with_queries": len({queries[number]["positives"][0] for number in kept}),
    }
    failed = sorted({*range(len(queries))} - {*passed})
    shown = {"kept queries": kept[: config.num_cases], "queries that failed": failed[: config.num_cases]}
    named = [queries[number]["positives"][0] for numbers in shown.values() for number in numbers]
    text_of = read_texts(inputs.corpus, pa.chunked_array([named], pa.string()))
    cases = {
        title: [_make_case(queries[number], ranks[number], text_of) for number in numbers]
        for title, numbers in shown.items()
        if numbers
    }
    return Result(metrics, cases=cases)


def _read_ranks(ranking: Path, names: Sequence[str]) -> list[int]:
    """Return the rank of each query's document. Raises InputError for a ranking of other queries."""
    table = read_shards(ranking, ["id", "ranks"])
    if table["id"].to_pylist() != names:
        raise InputError(f"{ranking}: ranks other queries; expected those of filter_queries.queries in the same order")
    return [int(ranks[0]) for ranks in table["ranks"].to_pylist()]


def _make_case(query: dict[str, Any], rank: int, text_of: Mapping[str, str]) -> dict[str, Any]:
    text = text_of[query["positives"][0]]
    return {"title": query["text"], "columns": {f"document, at rank {rank}": [{"text": text, "good": rank == 1}]}}
