"""Batches of one data set each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.tables import CORPUS, MINED, add_carried
from ratchet.data.triplets import Triplets
from ratchet.errors import DataError

SIZES = {"big": 37, "small": 5, "tiny": 1}


def make_triplets(weights: dict[str, float] | None, **options: Any) -> Triplets:
    names = [name for name, size in SIZES.items() for _ in range(size)]
    np.random.default_rng(0).shuffle(names)
    corpus = [{"id": f"c{n}", "text": f"text {n}"} for n in range(len(names))]
    queries = []
    for n, name in enumerate(names):
        query = {"id": f"q{n}", "text": f"query {n}", "positives": [f"c{n}"], "source": name}
        queries.append(query | {"negatives": [f"c{n - 1}"]} if n else query)
    mined = pa.Table.from_pylist(queries, add_carried(MINED, ["source"]))
    corpus_table = pa.Table.from_pylist(corpus, CORPUS)
    return Triplets(mined, corpus_table, batch_size=4, source_weights=weights, **options)


def list_sources(data: Triplets, queries: np.ndarray) -> list[str]:
    return data.queries["source"].take(pa.array(queries)).to_pylist()


@pytest.mark.parametrize("workers", [1, 2])
def test_each_batch_has_one_source_over_all_workers(workers: int) -> None:
    data = make_triplets({})
    for epoch in range(3):
        seen = Counter[int]()
        for step in range(data.num_batches):
            sources = set[str]()
            parts = [data.batch(epoch, step, rank, workers) for rank in range(workers)]
            for part in parts:
                seen.update(part.query_Q.tolist())
                sources.update(list_sources(data, part.query_Q))
            assert len(sources) == 1
            drawn = np.concatenate([part.query_Q for part in parts])
            assert sorted(drawn) == sorted(data.split_epoch(epoch)[step])
            assert data.smallest_batch <= sum(len(part.query_Q) for part in parts) <= 4
        assert seen == Counter(range(sum(SIZES.values())))


def test_sources_have_batches_in_proportion_and_are_interleaved() -> None:
    data = make_triplets({})
    order = [list_sources(data, batch)[0] for batch in data.split_epoch(0)]
    assert Counter(order) == {"big": 10, "small": 2, "tiny": 1}
    assert order != sorted(order)
    assert order != [list_sources(data, batch)[0] for batch in data.split_epoch(1)]


@pytest.mark.parametrize(("weight", "epochs"), [(0.4, 5), (1.0, 1), (2.0, 1), (1.8, 5)])
def test_a_weight_is_the_number_of_passes_per_epoch(weight: float, epochs: int) -> None:
    data = make_triplets({"small": weight})
    used = Counter[int]()
    for epoch in range(epochs):
        batches = data.split_epoch(epoch)
        assert len(batches) == data.num_batches
        used.update(np.concatenate(batches).tolist())
        small = [row for row in used if list_sources(data, np.array([row])) == ["small"]]
        # At any time, the queries of a source differ in use by at most one.
        assert max(used[row] for row in small) - min(used[row] for row in small) <= 1
    for row, count in used.items():
        is_small = list_sources(data, np.array([row])) == ["small"]
        assert count == round(epochs * (weight if is_small else 1))
    assert len(used) == sum(SIZES.values())


def test_a_resumed_run_draws_the_same_batches() -> None:
    run = make_triplets({"small": 1.4}, seed=3)
    expected = [[batch.tolist() for batch in run.split_epoch(epoch)] for epoch in range(4)]
    resumed = make_triplets({"small": 1.4}, seed=3)
    assert [batch.tolist() for batch in resumed.split_epoch(3)] == expected[3]
    assert [batch.tolist() for batch in resumed.split_epoch(1)] == expected[1]
    other = make_triplets({"small": 1.4}, seed=4)
    assert [batch.tolist() for batch in other.split_epoch(3)] != expected[3]


def test_a_single_source_and_an_unknown_one_are_refused() -> None:
    data = make_triplets(None)
    corpus = pa.table({"id": [f"c{n}" for n in range(43)], "text": ["text"] * 43})
    for queries in (data.queries.drop_columns("source"), data.queries.slice(0, 1)):
        with pytest.raises(DataError, match="batch_by: source given, for queries of one data set"):
            Triplets(queries, corpus, source_weights={})
    with pytest.raises(DataError, match="source_weights: web given; expected some of big, small"):
        make_triplets({"web": 2.0})
