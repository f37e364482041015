"""Fusion of rankings by reciprocal ranks (Cormack, Clarke and Büttcher, 2009) or scores, with a weight per system."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

GRID = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Weights that are tried for a system, relative to those of the other systems."""


def compute_spread(ranking: pa.Table) -> float:
    """Return the mean difference between the highest and the lowest score of a query's list; 1 for equal scores."""
    spreads = []
    for scores in ranking["scores"].to_pylist():
        if scores:
            spreads.append(max(scores) - min(scores))
    return float(np.mean(spreads or [1.0])) or 1.0


def compute_points(ranking: pa.Table, method: str, spread: float = 1.0) -> list[dict[str, float]]:
    """Return, per query, document -> points from one system before weighting: for `rrf` those of `score_ranks`, else
    (score - lowest score of the list) / spread.

    spread: from `compute_spread`, the same for all queries, so that lists whose scores hardly differ weigh less."""
    points = []
    for names, scores in zip(
        ranking["documents"].to_pylist(), ranking["scores"].to_pylist(), strict=True
    ):
        if method == "rrf":
            points.append(score_ranks(names))
            continue
        low = min(scores, default=0.0)
        own = {}
        for name, score in zip(names, scores, strict=True):
            own[name] = (score - low) / spread
        points.append(own)
    return points


def score_ranks(names: Sequence[str]) -> dict[str, float]:
    """Return 1 / (60 + rank) of a list's documents, the best first. 60 is the constant of the paper."""
    return {name: 1.0 / (60 + rank) for rank, name in enumerate(names, 1)}


def fuse(
    points: Sequence[Sequence[dict[str, float]]], weights: Sequence[float]
) -> list[list[tuple[str, float]]]:
    """Return (document, points) of each query, best first. Documents with equal points, as float32, are ordered
    by id, descending, as trec_eval orders them.

    points: per system, what `compute_points` returns. Systems with weight 0 contribute no documents.
    """
    fused = []
    for own in zip(*points, strict=True):
        total: dict[str, float] = {}
        for weight, found in zip(weights, own, strict=True):
            if weight:
                for name, value in found.items():
                    total[name] = total.get(name, 0.0) + weight * value
        fused.append(sorted(total.items(), key=_order, reverse=True))
    return fused


def _order(item: tuple[str, float]) -> tuple[np.float32, str]:
    name, points = item
    return np.float32(points), name


def choose_weights(systems: int, measure: Callable[[Sequence[float]], float]) -> list[float]:
    """Return the weights with the best value of `measure`: one system alone or all alike, then improved by changing one
    weight at a time over `GRID`. Of equal values the first is kept, so that equal weights win ties."""
    alone: list[list[float]] = np.eye(systems).tolist()
    best = max([[1.0] * systems, *alone], key=measure)
    value = measure(best)
    while True:
        tries = []
        for i in range(systems):
            for weight in GRID:
                tries.append([*best[:i], weight, *best[i + 1 :]])
        changed = max((one for one in tries if any(one)), key=measure)
        if measure(changed) <= value:
            return best
        best = changed
        value = measure(changed)
