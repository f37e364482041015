"""Splits of queries into train, valid and test."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from ratchet.data.retrieval import Query
from ratchet.errors import DataError

if TYPE_CHECKING:
    import numpy as np  # plans that do not need it start earlier

NAMES = ("train", "valid", "test")

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
) -> Splits:
    """Split queries into train, and into valid and test unless their fraction is 0. The order of the queries is kept.

    Splits that the source assigns are kept. The others are drawn by group: `test_fraction` of all groups, then
    `validation_fraction` of the remaining ones, but at least `least_valid` (see `LEAST_VALID`). split_by: a group is a
    `question` (`Query.group`), a `query`, or with `document` all queries that share positives, also indirectly. With
    `document` or several folds, fractions are of the queries, and a group is drawn if it brings the split nearer to its
    fraction. With several folds, test is part `fold` of `folds` parts of about the same size, which together hold each
    query once. Raises DataError, naming `source`, if
    a split would be empty, a group is too large, or the source assigns a split that the settings exclude."""
    side = [query.split or "train" for query in queries]

    def select(names: Sequence[str]) -> Splits:
        found: dict[str, list[Query]] = {name: [] for name in names}
        for query, own in zip(queries, side, strict=True):
            if own in found:
                found[own].append(query)
        return found

    if "train" not in side:  # all queries are for evaluation
        if "test" not in side:
            raise DataError(
                f"{source}: only queries for valid; expected some to train on or for test; add them"
            )
        return select(NAMES)
    by_document = split_by == "document"
    shares = {"test": test_fraction if folds == 1 else 1 / folds, "valid": validation_fraction}
    given = {name: own[0] for name, own in select(("valid", "test")).items() if own}
    for name, query in given.items():
        if by_document or not shares[name] or (folds > 1 and name == "test"):
            raise DataError(
                f"{query.where or source}: the data assign query '{query.id}' to {name}; expected no such split with"
                " split_by=document, folds or a fraction of 0; remove it from the data, or leave out the setting"
            )
    members = {"train", *given, *(name for name, share in shares.items() if share)}
    shares |= dict.fromkeys(given, 0.0)
    free = [number for number, own in enumerate(side) if own == "train"]
    components: list[int] = []
    if by_document:
        components = _connect([queries[number] for number in free])
    members_of: dict[Hashable, list[int]] = {}
    for place, number in enumerate(free):
        key: Hashable = queries[number].group
        if by_document:
            key = components[place]
        elif split_by == "query":
            key = queries[number].id
        members_of.setdefault(key, []).append(number)
    grouped = list(members_of.values())
    groups = list(range(len(grouped)))
    random.Random(seed).shuffle(groups)
    sizes = [len(own) for own in grouped]
    if by_document or folds > 1:
        weights = sizes
    else:
        weights = [1] * len(groups)

    total = sum(weights)
    num_tests = round(total * shares["test"])
    if folds > 1:
        most = -(-total // folds)
    else:
        most = total - num_tests - count_valid(total - num_tests, shares["valid"], least_valid)
    largest = max(weights)
    if by_document and largest > most:
        name = queries[grouped[weights.index(largest)][0]].positives[0]
        raise DataError(
            f"{source}: {largest:,} of {total:,} queries are connected by shared positives, such as document '{name}';"
            f" expected at most {most:,}, so that the splits share no document; lower the fractions or folds, or set"
            " split_by=question"
        )
    if folds > 1:
        tests = _draw_fold(groups, weights, folds, fold)
    else:
        tests = _draw(groups, weights, num_tests)
    drawn = set(tests)
    rest = [group for group in groups if group not in drawn]
    left = sum(weights[group] for group in rest)
    valid = _draw(rest, weights, count_valid(left, shares["valid"], least_valid))
    for name, chosen_groups in (("test", tests), ("valid", valid)):
        for group in chosen_groups:
            for number in grouped[group]:
                side[number] = name
    sides = select([name for name in NAMES if name in members])
    for name, chosen in sides.items():
        if not chosen:
            raise DataError(
                f"{source}: {len(queries)} queries in {len(groups)} groups leave none for {name}; expected groups for"
                " each split; give more, or set prepare.test_fraction and prepare.validation_fraction"
            )
    return sides


def leave_out_labels(
    train: Sequence[Query], held_out: Sequence[Query], fraction: float
) -> list[Query]:
    """Return the training queries without those that have certain positives, so that at least this fraction of the
    held-out queries is unseen. Held-out queries that cost the fewest training queries are chosen first."""
    trained = Counter(name for query in train for name in query.positives)
    costs = []
    for query in held_out:
        costs.append(sum(trained[name] for name in query.positives))
    seen = [number for number, cost in enumerate(costs) if cost]
    missing = math.ceil(fraction * len(held_out)) - (len(held_out) - len(seen))
    left_out: set[str] = set()
    for number in sorted(seen, key=costs.__getitem__)[: max(0, missing)]:
        left_out.update(held_out[number].positives)
    found: list[Query] = []
    for query in train:
        if left_out.isdisjoint(query.positives):
            found.append(query)
    return found


def find_seen(train: Sequence[Query], held_out: Sequence[Query]) -> np.ndarray:
    """Return whether a positive of each held-out query is a positive of a training query, bool [held_out]."""
    import numpy as np

    known = set()
    for query in train:
        for name in query.positives:
            known.add(name)
    return np.array([not known.isdisjoint(query.positives) for query in held_out], bool)


def _connect(queries: Sequence[Query]) -> list[int]:
    """Return the component of each query: queries that share positives are connected."""
    import numpy as np
    from scipy.sparse import csr_matrix  # plans that do not need them start earlier
    from scipy.sparse.csgraph import connected_components

    columns: dict[str, int] = {}
    pairs = []
    for row, query in enumerate(queries):
        for name in query.positives:
            pairs.append((row, len(queries) + columns.setdefault(name, len(columns))))
    total = len(queries) + len(columns)
    rows, places = zip(*pairs, strict=True)
    shared = csr_matrix((np.ones(len(pairs), np.int8), (rows, places)), (total, total))
    return connected_components(shared, directed=False)[1][: len(queries)].tolist()


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
