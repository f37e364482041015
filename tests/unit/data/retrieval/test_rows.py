"""Queries and documents from rows, against dictionaries."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ratchet.data.retrieval.rows import Row, number_rows

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
ROWS = st.lists(
    st.tuples(st.sampled_from("xyz"), st.lists(NAMES, min_size=1), st.lists(NAMES)), min_size=1
)


@given(ROWS, st.booleans(), st.lists(NAMES | st.just("pool")))
def test_rows_as_by_dictionaries(rows: list[Any], scored: bool, others: list[str]) -> None:
    ids: dict[str, str] = {}
    positives: dict[str, dict[str, float]] = {}
    negatives: dict[str, dict[str, float]] = {}
    scores = iter(range(1_000_000))  # of each text, in the order of the rows
    made = []
    for at, (text, *sides) in enumerate(rows):
        teacher = tuple([float(next(scores)) for _ in own] for own in sides)
        for found, own, values in zip((positives, negatives), sides, teacher, strict=True):
            for name, value in zip(own, values, strict=True):
                found.setdefault(text, {}).setdefault(ids.setdefault(name, f"d{len(ids)}"), value)
        made.append(Row(text, text, *sides, text, f"f:{at}", teacher=teacher if scored else None))
    for name in others:
        ids.setdefault(name, f"d{len(ids)}")
    data = number_rows(made, others)
    assert {document.text: document.id for document in data.corpus} == ids
    assert [document.id for document in data.corpus] == list(ids.values())
    assert len(data.corpus) == len(ids)
    assert data.notes == {"rows that repeat a query, put together": len(rows) - len(positives)}
    assert [(q.id, q.text, list(q.positives)) for q in data.queries] == [
        (f"q{n}", text, list(own)) for n, (text, own) in enumerate(positives.items())
    ]
    for query, (text, own) in zip(data.queries, positives.items(), strict=True):
        left = {name: value for name, value in negatives.get(text, {}).items() if name not in own}
        assert list(query.negatives) == list(left)
        assert query.teacher == ((tuple(own.values()), tuple(left.values())) if scored else None)
