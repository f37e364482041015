"""Exact ranks where every row of a corpus asks for others of it: half of the multiplications do.

score(a, b) is score(b, a), so one product of two groups of rows counts for the queries of both. The groups stand in a
ring, and each is multiplied by itself and by the half of the ring that follows it: every pair of groups meets once, and
all groups have the same work, which may be dealt to machines as one likes. What they counted is added up.

Shapes: S rows, D dimensions, R (row, relevant row) pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from models.errors import ModelError
from models.ranks import RankCounter, Relevant, relevant_scores
from models.scores import Array

GROUP_ROWS = 2048
GPU_GROUP_ROWS = 8192
"""Every two groups cost a GPU's host some milliseconds, so there they are few."""

CHUNK_ROWS = 512
"""Of a group, that a CPU's core multiplies and counts at a time: its scores stay in the core's cache."""


class AllAgainstAll:
    """Counts, group by group, the rows that stand before each relevant one; no row ranks itself.

    `relevant`: of all S rows, with no row relevant to itself. Raises ModelError as `RankCounter` does.
    """

    def __init__(
        self, vectors_SD: Array, relevant: Relevant, *, device: str = "cpu", group_rows: int | None = None
    ) -> None:
        if len(relevant.indptr) - 1 != len(vectors_SD):
            raise ModelError(
                f"AllAgainstAll: relevant has {len(relevant.indptr) - 1} queries for {len(vectors_SD)} rows; expected "
                "each row to be a query; give rows that ask nothing an empty list"
            )
        self.vectors_SD, self.relevant, self.device = vectors_SD, relevant, device
        self.group_rows = group_rows or (GROUP_ROWS if device == "cpu" else GPU_GROUP_ROWS)
        self.scores_R = relevant_scores(vectors_SD, relevant, vectors_SD)

    def count(self, first: int, stop: int, done: Callable[[int], None] = lambda row: None) -> np.ndarray:
        """What the groups that begin in rows [first, stop) count, int64 [R]: summed over ranges that hold every row
        once, the number of rows before each relevant one. `done` is told the row up to which groups have counted."""
        starts = range(0, len(self.vectors_SD), self.group_rows)
        counters: dict[int, RankCounter] = {}
        for number, start in enumerate(starts):
            if first <= start < stop:
                counter = counters[number] = counters.get(number) or self._counter(start)
                counter.add(start, self.vectors_SD[start : start + self.group_rows])
                rest = following(number, len(starts))
                for other in rest:
                    counters[other] = counters.get(other) or self._counter(starts[other])
                counter.add_mutually(start, [(starts[other], counters[other]) for other in rest])
                done(min(start + self.group_rows, stop))
        before_R = np.zeros(len(self.relevant.indices), np.int64)
        for number, counter in counters.items():
            before_R[self._pairs(starts[number])] += counter.before_R
        return before_R

    def _counter(self, start: int) -> RankCounter:
        rows, pairs = slice(start, start + self.group_rows), self._pairs(start)
        vectors_GD = self.vectors_SD[rows]
        indptr = self.relevant.indptr[start : start + len(vectors_GD) + 1]
        relevant = Relevant(indptr - indptr[0], self.relevant.indices[pairs])
        itself = np.arange(start, start + len(vectors_GD))
        return RankCounter(
            relevant,
            self.scores_R[pairs],
            query_QD=vectors_GD,
            exclude_Q=itself,
            device=self.device,
            query_rows=CHUNK_ROWS if self.device == "cpu" else self.group_rows,
            block_rows=self.group_rows,
        )

    def _pairs(self, start: int) -> slice:
        """The pairs of the group that begins at a row."""
        indptr = self.relevant.indptr
        return slice(int(indptr[start]), int(indptr[min(start + self.group_rows, len(indptr) - 1)]))


def following(number: int, groups: int) -> list[int]:
    """The groups that a group of a ring is multiplied by, besides itself: the half that follows. In a ring of an even
    number, two groups opposite each other meet once: the one of lower number has the other."""
    half = (groups - 1) // 2 + (groups % 2 == 0 and number < groups // 2)
    return [(number + distance) % groups for distance in range(1, half + 1)]
