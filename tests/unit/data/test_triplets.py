"""Triplets that are drawn for each epoch."""

from __future__ import annotations

import statistics
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.data.tables import CORPUS
from ratchet.data.triplets import Triplets
from ratchet.errors import DataError

CORPUS_ROWS = [{"id": f"c{n}", "text": f"text {n % 7}"} for n in range(9)]
QUERY_ROWS = [
    {
        "id": f"q{n}",
        "text": f"query {n}",
        "positives": [f"c{n % 9}", f"c{(n + 1) % 9}"][: 1 + n % 2],
        "negatives": [f"c{m}" for m in range(n % 5)],
    }
    for n in range(23)
]


def made(queries: list[dict[str, Any]] = QUERY_ROWS, **options: int) -> Triplets:
    kind = pa.list_(pa.string())
    schema = pa.schema(
        [("id", pa.string()), ("text", pa.string()), ("positives", kind), ("negatives", kind)]
    )
    return Triplets(
        pa.Table.from_pylist(queries, schema), pa.Table.from_pylist(CORPUS_ROWS, CORPUS), **options
    )


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 30))
def test_an_epoch_has_each_query_once_in_nearly_equal_steps(
    seed: int, epoch: int, batch: int
) -> None:
    data = made(seed=seed, batch_size=batch)
    batches = data.split_epoch(epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(23))
    sizes = {len(one) for one in batches}
    assert max(sizes) <= batch
    assert max(sizes) - min(sizes) <= 1
    assert len(batches) == data.num_batches


def test_what_is_drawn_depends_on_seed_epoch_and_query_alone() -> None:
    data = made(seed=1, num_negatives=3)
    for query in range(23):
        draws = [data.draw(epoch, query) for epoch in range(40)]
        again = data.draw(7, query)
        assert draws[7][0] == again[0]
        assert np.array_equal(draws[7][1], again[1])
        assert {positive for positive, _ in draws} == set(data.positives(query).tolist()), (
            "every positive has its turn"
        )
        assert {row for _, rows in draws for row in rows.tolist()} == set(range(query % 5)), (
            "every negative has its turn"
        )
        assert all(len(set(rows.tolist())) == len(rows) == min(3, query % 5) for _, rows in draws)


def test_equal_texts_have_equal_numbers() -> None:
    rows = [*QUERY_ROWS, {"text": "text 3", "positives": ["c1"], "negatives": []}]
    data = made(rows)
    texts = [row["text"] for row in CORPUS_ROWS]
    for i, one in enumerate(texts):
        for j, other in enumerate(texts):
            assert (data.text_of_row[i] == data.text_of_row[j]) == (one == other)
    assert data.text_of_query[-1] == data.text_of_row[3]
    assert not set(data.text_of_query[:-1]) & set(data.text_of_row)


def test_unusable_triplets() -> None:
    assert len(made([*QUERY_ROWS, {"text": "q", "positives": [], "negatives": []}])) == 23
    with pytest.raises(DataError, match="no query has a positive"):
        made([{"text": "q", "positives": [], "negatives": []}])
    with pytest.raises(DataError, match="mined: row 0: negative 'nowhere' is not in the corpus"):
        made([{"text": "q", "positives": ["c1"], "negatives": ["c2", "nowhere"]}])


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 9), st.integers(1, 4), st.integers(0, 3))
def test_any_number_of_workers_has_the_same_step(seed: int, workers: int, negatives: int) -> None:
    data = made(seed=seed, batch_size=8, num_negatives=negatives)
    parts = [data.batch(1, 2, rank, workers) for rank in range(workers)]
    texts = data.text_of_row[parts[0].passage_P]
    assert len(set(texts.tolist())) == len(texts)
    seen = []
    for part in parts:
        assert part.passage_P.tolist() == parts[0].passage_P.tolist()
        assert part.offsets == parts[0].offsets
        assert (part.offsets[0], part.offsets[-1]) == (0, len(texts))
        for query, own in zip(part.query_Q.tolist(), part.own_Q, strict=True):
            positive, others = data.draw(1, query)
            assert texts[own].tolist() == data.text_of_row[[positive, *others]].tolist()
            seen.append(query)
    assert sorted(seen) == sorted(data.split_epoch(1)[2].tolist())
    sizes = [len(part.query_Q) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def scored(
    change: dict[str, Any] | None = None, without: str = "", factor: float = 1.0
) -> Triplets:
    """Every passage's score is its number in the corpus plus a hundredth of the query's, times `factor`."""
    rows = []
    for n, row in enumerate(QUERY_ROWS):
        scores = {
            name: [factor * (int(text[1:]) + n / 100) for text in row[ids]]
            for ids, name in (
                ("positives", "teacher_positive_scores"),
                ("negatives", "teacher_negative_scores"),
            )
        }
        rows.append(row | scores | (change or {} if n == 9 else {}))
    ids, numbers = pa.list_(pa.string()), pa.list_(pa.float32())
    fields = [("id", pa.string()), ("text", pa.string()), ("positives", ids), ("negatives", ids)]
    fields += [
        (name, numbers)
        for name in ("teacher_positive_scores", "teacher_negative_scores")
        if name != without
    ]
    table = pa.Table.from_pylist(rows, pa.schema(fields))
    options: dict[str, Any] = {"seed": 5, "batch_size": 8, "num_negatives": 3, "teacher": True}
    return Triplets(table, pa.Table.from_pylist(CORPUS_ROWS, CORPUS), **options)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_teachers_scores_follow_their_passages(workers: int) -> None:
    data, plain = scored(), made(seed=5, batch_size=8, num_negatives=3)
    for rank in range(workers):
        step, same = (one.batch(2, 1, rank, workers) for one in (data, plain))
        assert same.teacher_Q is None
        assert step.teacher_Q is not None
        assert step.query_Q.tolist() == same.query_Q.tolist()
        for query, own, teacher in zip(
            step.query_Q.tolist(), step.own_Q, step.teacher_Q, strict=True
        ):
            positive, others = plain.draw(2, query)
            np.testing.assert_allclose(
                teacher, np.array([positive, *others]) + query / 100, rtol=1e-6
            )
            assert len(own) == len(teacher)


@pytest.mark.parametrize(
    ("change", "without", "said"),
    [
        (
            {"teacher_negative_scores": [1.0]},
            "",
            "40 finite teacher_negative_scores for 43 negatives",
        ),
        (
            {"teacher_negative_scores": None},
            "",
            "39 finite teacher_negative_scores for 43 negatives",
        ),
        (
            {"teacher_positive_scores": [float("nan")] * 2},
            "",
            "32 finite teacher_positive_scores for 34 positives",
        ),
        ({}, "teacher_positive_scores", "has no column teacher_positive_scores"),
    ],
)
def test_scores_that_are_missing_or_no_numbers_are_named(
    change: dict[str, Any], without: str, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        scored(change, without)


def test_margin_of_a_teacher() -> None:
    margins = []
    for row in QUERY_ROWS:
        right, wrong = (
            [int(text[1:]) for text in row[name]] for name in ("positives", "negatives")
        )
        margins += [statistics.fmean(right) - statistics.fmean(wrong)] if right and wrong else []
    assert 0 < len(margins) < len(QUERY_ROWS)
    mean = statistics.fmean(margins)
    assert scored(factor=10 / mean).teacher_margin == pytest.approx(10, rel=1e-5)
    with pytest.raises(
        DataError, match=r"mean difference of -10 .* expected more than 0; use another teacher"
    ):
        assert scored(factor=-10 / mean).teacher_margin


def test_examples_are_never_the_querys_own() -> None:
    rows = [*QUERY_ROWS, {"text": "query 3", "positives": ["c8"], "negatives": []}]
    data = made(rows, seed=5)
    counts = set()
    for query in range(len(rows)):
        own = set(data.text_of_row[data.positives(query)].tolist())
        for epoch in range(20):
            found = data.draw_examples(epoch, query, 3)
            assert found == data.draw_examples(epoch, query, 3)
            counts.add(len(found))
            for other, answer in found:
                assert rows[other]["text"] != rows[query]["text"]
                assert answer in data.positives(other)
                assert data.text_of_row[answer] not in own
            assert len({other for other, _ in found}) == len(found)
    assert counts == {0, 1, 2, 3}
    assert data.draw_examples(0, 1, 0) == []


@pytest.mark.slow
def test_drawing_examples_does_not_shuffle_all_queries() -> None:
    data = made(
        [{"text": f"query {i}", "positives": [f"c{i % 9}"], "negatives": []} for i in range(50_000)]
    )
    data.draw_examples(0, 0, 3)
    tracemalloc.start()
    for query in range(20):
        data.draw_examples(0, query, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000, "a permutation of the queries takes 400,000 bytes"
