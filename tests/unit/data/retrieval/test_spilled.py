"""Sequences on disk against lists, and numbering of texts against dictionaries."""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.data import tables
from ratchet.data.retrieval import Query, spilled
from ratchet.data.retrieval.rows import Row, number_rows
from ratchet.data.retrieval.spilled import Selection, Spilled, hash_names, number_by_appearance
from ratchet.errors import describe


def make(number: int) -> Query:
    return Query(
        f"q{number}", f"téxt {number}", (f"d{number}", "d"), (1, 2), teacher=((0.1, number), ()), source=number
    )


@pytest.mark.parametrize("number", [0, 1, 7, 8, 9, 30])
@pytest.mark.parametrize("held", [0, 1 << 20])
def test_items_come_back_in_order_and_by_place(number: int, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled, "BLOCK", 8)
    monkeypatch.setattr(spilled, "HELD_BYTES", held)
    items = [make(n) for n in range(number)]
    kept = Spilled(iter(items), Query._make)
    assert len(kept) == number
    assert list(kept) == items
    places = np.random.default_rng(0).permutation(number)
    assert [kept[int(place)] for place in places] == [items[place] for place in places]
    assert all(isinstance(item, Query) for item in kept)
    assert [a for pair in zip(kept, kept, strict=True) for a in pair] == [a for item in items for a in (item, item)]
    chosen = np.array([n // 2 for n in range(number)], np.int64)
    assert list(Selection(kept, chosen)) == [items[place] for place in chosen]
    if number:
        assert kept[-1] == items[-1] == Selection(kept, np.arange(number))[-1]
    with pytest.raises(IndexError):
        kept[number]


@pytest.mark.parametrize(
    "write",
    [
        lambda: Spilled((make(n) for n in range(5000)), Query._make),
        lambda: tables.join_tables([pa.table({"a": range(50_000)})] * 2),
    ],
)
def test_a_full_disk_is_reported_with_the_folder(write: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spilled, "HELD_BYTES", 8)
    monkeypatch.setattr(tables, "HELD_BYTES", 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError) as caught:
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert describe(caught.value).startswith(f"{tempfile.gettempdir()} (TMPDIR): File too large; expected free space")


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5)))
def test_numbers_are_those_of_the_order_of_appearance(values: list[int]) -> None:
    seen: dict[int, int] = {}
    expected = [seen.setdefault(value, len(seen)) for value in values]
    number_N, first_U = number_by_appearance(np.array(values, np.int64))
    assert number_N.tolist() == expected
    assert first_U.tolist() == [values.index(value) for value in seen]


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=3)))
def test_hashes_of_names_say_whose_they_are(names: list[list[str]]) -> None:
    hash_P, set_P = hash_names(names)
    assert list(zip(hash_P.tolist(), set_P.tolist(), strict=True)) == [
        (hash(name), number) for number, own in enumerate(names) for name in own
    ]


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
ROWS = st.lists(st.tuples(st.sampled_from("xyz"), st.lists(NAMES, min_size=1), st.lists(NAMES)), min_size=1)


@given(ROWS, st.booleans(), st.lists(NAMES | st.just("pool")))
def test_rows_become_the_queries_and_documents_that_dictionaries_give(
    rows: list[Any], scored: bool, others: list[str]
) -> None:
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
