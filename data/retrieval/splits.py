"""Splits of queries into train, valid and test."""

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from ratchet.data.retrieval import Query
from ratchet.errors import DataError

if TYPE_CHECKING:
    import numpy as np  # plans that do not need it start earlier

LEAST_VALID = 8
"""Smallest number of groups in the valid split, if that leaves two thirds of the rest for training. A model is kept
only if a test on the valid groups shows a gain, and a test on fewer than five groups never does."""

Splits = dict[str, list[Query]]


def count_valid(rest: int, fraction: float, least: int) -> int:
    """Return how many of the groups that are left beside the test split are for valid. least: see `LEAST_VALID`."""
    if not fraction:
        return 0
    return max(round(rest * fraction), min(least, rest // 3))


def split_queries(
    queries: Sequence[Query],
    test_fraction: float,
    validation_fraction: float,
    seed: int,
    source: str = "split",
    *,
    split_by: str = "question",
    folds: int = 1,
    fold: int = 0,
    least_valid: int = LEAST_VALID,
    most: int | None = None,
) -> Splits:
    """Split queries into train, and into valid and test unless their fraction is 0. The order of the queries is kept.

    Splits that the source assigns are kept. The others are drawn by group: `test_fraction` of all groups, then
    `validation_fraction` of the remaining ones, but at least `least_valid` (see `LEAST_VALID`). split_by: a group is a
    `question` (`Query.group`), a `query`, or with `document` all queries that share positives, also indirectly. With
    `document` or several folds, fractions are of the queries, and a group is drawn if it brings the split nearer to its
    fraction. With several folds, test is part `fold` of `folds` parts of about the same size, which together hold each
    query once. most: maximum size of valid, and of test. Raises DataError, naming `source`, if a split would be empty,
    or the source assigns a split that the settings exclude."""
    most = most or len(queries)
    splits: Splits = {"train": []}
    if validation_fraction:
        splits["valid"] = []
    if test_fraction or folds > 1:
        splits["test"] = []
    assigned = {query.split or "train" for query in queries}
    if "train" not in assigned:  # all queries are for evaluation
        if "test" not in assigned:
            raise DataError(
                f"{source}: only queries for valid; expected some to train on or for test; add them"
            )
        splits = {"train": [], "valid": [], "test": []}
        for query in queries:
            splits[query.split or "train"].append(query)
        return splits
    _check_assigned(queries, splits, source, split_by, folds)
    free = [query for query in queries if query.split in (None, "train")]
    groups = _group(free, split_by)
    order = list(range(len(groups)))
    random.Random(seed).shuffle(order)
    weights = [1] * len(groups)
    if split_by == "document" or folds > 1:
        weights = [len(own) for own in groups]
    tests = []
    if folds > 1:
        tests = _draw_fold(order, weights, folds, fold)
    elif "test" not in assigned:
        tests = _draw(order, weights, min(most, round(sum(weights) * test_fraction)))
    tested = set(tests)
    rest = [group for group in order if group not in tested]
    valid = []
    if "valid" not in assigned:
        left = sum(weights[group] for group in rest)
        size = count_valid(left, validation_fraction, least_valid)
        valid = _draw(rest, weights, min(most, size))
    drawn: dict[str, str] = {}
    for name, chosen in (("test", tests), ("valid", valid)):
        for group in chosen:
            drawn |= dict.fromkeys((query.id for query in groups[group]), name)
    for query in queries:
        splits[drawn.get(query.id, query.split or "train")].append(query)
    for name, found in splits.items():
        if not found:
            raise DataError(
                f"{source}: {len(queries)} queries in {len(groups)} groups leave none for {name}; expected groups for"
                " each split; give more, or set prepare.test_fraction and prepare.validation_fraction"
            )
    return splits


def _check_assigned(
    queries: Sequence[Query], splits: Splits, source: str, split_by: str, folds: int
) -> None:
    """Raise DataError for a query that the source assigns to a split which the settings exclude."""
    for query in queries:
        name = query.split or "train"
        excluded = split_by == "document" or name not in splits or (folds > 1 and name == "test")
        if name != "train" and excluded:
            raise DataError(
                f"{query.where or source}: the data assign query '{query.id}' to {name}; expected no such split with"
                " split_by=document, folds or a fraction of 0; remove it from the data, or leave out the setting"
            )


def _group(queries: Sequence[Query], split_by: str) -> list[list[Query]]:
    """Return the groups of queries that stay in one split."""
    keys: list[Hashable] = [query.group for query in queries]
    if split_by == "query":
        keys = [query.id for query in queries]
    elif split_by == "document":
        keys = _connect(queries)
    groups: dict[Hashable, list[Query]] = {}
    for key, query in zip(keys, queries, strict=True):
        groups.setdefault(key, []).append(query)
    return list(groups.values())


def leave_out_labels(
    train: Sequence[Query], held_out: Sequence[Query], fraction: float
) -> list[Query]:
    """Return the training queries without those that have certain positives, so that at least this fraction of the
    held-out queries is unseen. Held-out queries that cost the fewest training queries are chosen first."""
    trained: Counter[str] = Counter()
    for query in train:
        trained.update(query.positives)
    seen = []
    for number, query in enumerate(held_out):
        cost = sum(trained[name] for name in query.positives)
        if cost:
            seen.append((cost, number))
    unseen = len(held_out) - len(seen)
    missing = math.ceil(fraction * len(held_out)) - unseen
    left_out: set[str] = set()
    for _, number in sorted(seen)[: max(0, missing)]:
        left_out.update(held_out[number].positives)
    return [query for query in train if left_out.isdisjoint(query.positives)]


def find_seen(train: Sequence[Query], held_out: Sequence[Query]) -> "np.ndarray":
    """Return whether a positive of each held-out query is a positive of a training query, bool [held_out]."""
    import numpy as np

    known: set[str] = set()
    for query in train:
        known.update(query.positives)
    return np.array([not known.isdisjoint(query.positives) for query in held_out], bool)


def _connect(queries: Sequence[Query]) -> list[Hashable]:
    """Return the component of each query: queries that share positives are connected."""
    import numpy as np
    from scipy.sparse import csr_matrix  # plans that do not need them start earlier
    from scipy.sparse.csgraph import connected_components

    columns: dict[str, int] = {}
    rows = []
    places = []
    for row, query in enumerate(queries):
        for name in query.positives:
            rows.append(row)
            places.append(len(queries) + columns.setdefault(name, len(columns)))
    total = len(queries) + len(columns)
    ones = np.ones(len(rows), np.int8)
    shared = csr_matrix((ones, (rows, places)), (total, total))
    _, component = connected_components(shared, directed=False)
    return component[: len(queries)].tolist()


def _draw(groups: Sequence[int], weights: Sequence[int], size: int) -> list[int]:
    """Return groups for a split of `size`, in order: each one that brings the split nearer to that size."""
    drawn = []
    for group in groups:
        if weights[group] <= 2 * size:
            drawn.append(group)
            size -= weights[group]
    return drawn


def _draw_fold(groups: Sequence[int], weights: Sequence[int], folds: int, fold: int) -> list[int]:
    """Return the groups of a fold. Groups are assigned by decreasing size, each to the fold that is smallest so far."""
    parts: list[list[int]] = [[] for _ in range(folds)]
    sizes = [0] * folds
    for group in sorted(groups, key=lambda group: -weights[group]):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(group)
        sizes[smallest] += weights[group]
    return parts[fold]
