"""Properties of splits of queries: groups, folds, labels that training has not seen."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.data.retrieval import Query
from ratchet.data.retrieval.splits import leave_out_labels, split_queries
from ratchet.errors import DataError


def make_queries(labels: list[list[int]], per_question: int = 2) -> list[Query]:
    """labels: the documents of each query."""
    return [
        Query(
            f"q{n}",
            f"text {n}",
            tuple(f"d{label}" for label in own),
            (1,) * len(own),
            group=f"g{n // per_question}",
        )
        for n, own in enumerate(labels)
    ]


LABELS = st.lists(
    st.lists(st.integers(0, 60), min_size=1, max_size=2, unique=True), min_size=12, max_size=60
)
SPLIT_BY = st.sampled_from(["question", "document", "query"])


@pytest.mark.slow
@given(LABELS, st.integers(0, 40), st.floats(0, 1))
def test_labels_are_left_out(labels: list[list[int]], held_out: int, fraction: float) -> None:
    queries = make_queries(labels)
    tested, train = queries[:held_out], queries[held_out:]
    kept = list(leave_out_labels(train, tested, fraction))
    known = {name for query in kept for name in query.positives}
    unseen = sum(known.isdisjoint(query.positives) for query in tested)
    assert unseen >= fraction * len(tested)
    assert kept == [query for query in train if query in kept]
    trained = {name for query in train for name in query.positives}
    if sum(trained.isdisjoint(query.positives) for query in tested) >= fraction * len(tested):
        assert kept == train


def find_components(queries: list[Query]) -> list[set[str]]:
    """Ids of the queries that share positives, directly or indirectly, by merging sets until nothing changes."""
    components = [({query.id}, set(query.positives)) for query in queries]
    for one, other in itertools.combinations(range(len(components)), 2):
        if components[one][1] & components[other][1]:
            components[other] = tuple(
                a | b for a, b in zip(components[one], components[other], strict=True)
            )
            components[one] = (set(), set())
    return [ids for ids, _ in components if ids]


def list_groups(queries: list[Query], split_by: str) -> list[set[str]]:
    if split_by == "document":
        return find_components(queries)
    keys = {query.id: query.id if split_by == "query" else query.group for query in queries}
    return [
        {name for name, key in keys.items() if key == wanted}
        for wanted in dict.fromkeys(keys.values())
    ]


def split(queries: list[Query], **options: Any) -> dict[str, list[Query]] | None:
    """Return the splits, or None where one would be empty or a group is too large."""
    try:
        sides = split_queries(
            queries, **({"test_fraction": 0.2, "validation_fraction": 0.15, "seed": 1} | options)
        )
        return {name: list(members) for name, members in sides.items()}
    except DataError as error:
        if re.search("leave none for", str(error)):
            return None
        raise


@settings(max_examples=40)
@given(labels=LABELS, split_by=SPLIT_BY, seed=st.integers(0, 20), folds=st.sampled_from([1, 2, 5]))
def test_every_query_is_in_one_split_with_its_group(
    labels: list[list[int]], split_by: str, seed: int, folds: int
) -> None:
    queries = make_queries(labels)
    options: dict[str, Any] = {"split_by": split_by, "folds": folds, "seed": seed}
    if (sides := split(queries, **options)) is None:
        return
    assert sides == split(list(queries), **options)
    assert [query for query in queries if query in sides["train"]] == sides["train"]
    assert sorted(query.id for members in sides.values() for query in members) == sorted(
        query.id for query in queries
    )
    ids = {name: {query.id for query in members} for name, members in sides.items()}
    for group in list_groups(queries, split_by):
        assert sum(bool(group & members) for members in ids.values()) == 1
    if split_by == "document":
        positives = [
            {name for query in members for name in query.positives} for members in sides.values()
        ]
        assert all(not one & other for one, other in itertools.combinations(positives, 2))


@settings(max_examples=40)
@given(labels=LABELS, split_by=SPLIT_BY)
def test_splits_have_the_size_of_their_fractions(labels: list[list[int]], split_by: str) -> None:
    queries = make_queries(labels)
    groups = list_groups(queries, split_by)
    if (sides := split(queries, split_by=split_by)) is None:
        return
    tested = {query.id for query in sides["test"]}
    if split_by != "document":
        assert sum(bool(group & tested) for group in groups) == round(len(groups) * 0.2)
        return
    target = round(len(queries) * 0.2)
    assert len(tested) - target <= max(len(group) for group in groups if group & tested) / 2
    left = [abs(target - len(tested) - len(group)) for group in groups if not group & tested]
    assert min(left) >= abs(target - len(tested)), "nearer with another group"


@settings(max_examples=40)
@given(labels=LABELS, split_by=SPLIT_BY, folds=st.integers(2, 6), seed=st.integers(0, 20))
def test_a_query_is_tested_in_one_fold(
    labels: list[list[int]], split_by: str, folds: int, seed: int
) -> None:
    queries = make_queries(labels)
    options: dict[str, Any] = {"split_by": split_by, "folds": folds, "seed": seed}
    found = [split(queries, **options, fold=fold) for fold in range(folds)]
    if any(sides is None for sides in found):
        return
    tested = [query.id for sides in found if sides for query in sides["test"]]
    assert sorted(tested) == sorted(query.id for query in queries)
    sizes = [len(sides["test"]) for sides in found if sides]
    assert max(sizes) - min(sizes) <= max(map(len, list_groups(queries, split_by)))


def test_groups_that_fit_are_split() -> None:
    """The properties above hold where there is a split: here there is one in every case."""
    queries = make_queries([[n // 3] for n in range(60)])
    for split_by, folds in itertools.product(("question", "document", "query"), (1, 2, 5)):
        assert split(queries, split_by=split_by, folds=folds) is not None
    assert len(split_queries(queries, 0.2, 0.0, 1, split_by="document")["test"]) == 12


def test_large_groups_are_named() -> None:
    queries = make_queries([[n // 20] for n in range(80)])
    with pytest.raises(
        DataError, match=r"80 queries in 4 groups leave none for valid; expected groups for each"
    ):
        split_queries(queries, 0.2, 0.1, 1, split_by="document")
    for groups in (5, 6):
        queries = make_queries([[n // 20] for n in range(20 * groups)])
        assert (split(queries, split_by="document", validation_fraction=0.1) is not None) == (
            groups == 6
        )


@pytest.mark.parametrize(
    ("queries", "valid"), [(3, 1), (12, 4), (24, 8), (79, 8), (80, 8), (90, 9), (1000, 100)]
)
def test_valid_has_enough_groups(queries: int, valid: int) -> None:
    sides = split_queries(
        make_queries([[n] for n in range(queries)]), 0.0, 0.1, 1, split_by="query"
    )
    assert len(sides["valid"]) == valid
    assert len(sides["train"]) == queries - valid


def test_a_fraction_of_zero_makes_no_split() -> None:
    queries = make_queries([[n] for n in range(20)])
    assert {name: len(members) for name, members in split_queries(queries, 0, 0, 1).items()} == {
        "train": 20
    }
    assert list(split_queries(queries, 0.2, 0, 1)) == ["train", "test"]
    assert list(split_queries(queries, 0, 0.1, 1)) == ["train", "valid"]


@pytest.mark.parametrize(
    ("given_split", "options"),
    [
        ("test", {"split_by": "document"}),
        ("valid", {"split_by": "document"}),
        ("test", {"folds": 2}),
        ("test", {"test_fraction": 0}),
        ("valid", {"validation_fraction": 0}),
    ],
)
def test_excluded_split_is_refused(given_split: str, options: dict[str, Any]) -> None:
    queries = [
        *make_queries([[n] for n in range(30)]),
        Query("q", "t", ("d1",), (1,), split=given_split, where="f:7"),
    ]
    with pytest.raises(
        DataError, match=rf"f:7: the data assign query 'q' to {given_split}; expected no such split"
    ):
        split_queries(
            queries, **({"test_fraction": 0.2, "validation_fraction": 0.1, "seed": 1} | options)
        )


def test_folds_keep_the_valid_split_of_the_data() -> None:
    queries = [
        *make_queries([[n] for n in range(30)]),
        Query("q", "t", ("d1",), (1,), split="valid"),
    ]
    for fold in range(3):
        sides = split_queries(queries, 0.2, 0.1, 1, folds=3, fold=fold)
        assert [query.id for query in sides["valid"]] == ["q"]


@pytest.mark.parametrize("split_by", ["question", "query"])
def test_held_out_queries_are_capped(split_by: str) -> None:
    """Those of a fraction that is smaller are not."""
    queries = [Query(f"q{n}", f"text {n}", (f"d{n}",), (1,), group=f"q{n}") for n in range(1000)]
    for most, test, valid in ((50, 50, 50), (150, 150, 85), (None, 200, 80)):
        splits = split_queries(queries, 0.2, 0.1, 0, split_by=split_by, most=most)
        assert (len(splits["test"]), len(splits["valid"])) == (test, valid)
        assert len(splits["train"]) == 1000 - test - valid
