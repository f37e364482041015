"""Fusion of rankings, against the formula computed by hand, and the choice of weights."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.fusion import GRID, choose_weights, compute_points, compute_spread, fuse

LISTS = [["a", "b", "c"], ["d", "a"]]
SCORES = [[0.9, 0.5, 0.1], [3.0, 1.0]]


def ranking(documents: list[str], scores: list[float]) -> pa.Table:
    return pa.table({"documents": [documents], "scores": [scores]})


def test_reciprocal_ranks_are_added() -> None:
    points = [compute_points(ranking(*one), "rrf") for one in zip(LISTS, SCORES, strict=True)]
    expected = {
        name: float(
            sum(
                Fraction(weight, 61 + own.index(name))
                for weight, own in zip((2, 1), LISTS, strict=True)
                if name in own
            )
        )
        for name in "abcd"
    }
    [fused] = fuse(points, [2, 1])
    assert dict(fused) == pytest.approx(expected)
    assert [name for name, _ in fused] == sorted(expected, key=lambda name: -expected[name])


def test_scores_are_scaled_alike() -> None:
    tables = [ranking(*one) for one in zip(LISTS, SCORES, strict=True)]
    points = [compute_points(table, "scores", compute_spread(table)) for table in tables]
    [fused] = fuse(points, [1, 0.5])
    assert dict(fused) == pytest.approx({"a": 1.0, "b": 0.5, "c": 0.0, "d": 0.5})
    assert [name for name, _ in fused] == ["a", "d", "b", "c"], (
        "equal points are ordered by name, descending"
    )


def test_the_spread_is_the_mean_over_queries() -> None:
    table = pa.table({"scores": [[1.0, 5.0], [2.0, 2.0], [], [7.0]]})
    assert compute_spread(table) == pytest.approx(4 / 3)
    assert compute_spread(pa.table({"scores": [[2.0], []]})) == 1.0


def test_a_system_of_weight_0_brings_no_documents() -> None:
    points = [compute_points(ranking(*one), "rrf") for one in zip(LISTS, SCORES, strict=True)]
    assert [name for name, _ in fuse(points, [0, 1])[0]] == LISTS[1]


def test_lists_without_documents_and_with_one_score_are_fused() -> None:
    points = [
        compute_points(ranking([], []), "scores"),
        compute_points(ranking(["a"], [2.0]), "scores"),
    ]
    assert fuse(points, [1, 1]) == [[("a", 0.0)]]


def test_the_best_weights_are_found_on_a_surface_with_one_peak() -> None:
    goal = (1.0, 0.25, 4.0)

    def measure(weights: object) -> float:
        return -sum((a - b) ** 2 for a, b in zip(np.array(weights), goal, strict=True))

    assert tuple(choose_weights(3, measure)) == goal
    assert max(itertools.product(GRID, repeat=3), key=measure) == goal


def test_equal_weights_stay_where_nothing_is_better() -> None:
    assert choose_weights(4, lambda weights: 0.5) == [1.0] * 4
