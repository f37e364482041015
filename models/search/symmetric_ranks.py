"""Exact ranks where every row of a corpus is also a query, with half of the multiplications.

score(a, b) = score(b, a), so one product of two groups of rows counts for the queries of both. Groups form a ring, and
each is multiplied by itself and by the half of the ring that follows: every pair of groups meets once, and all groups
have the same work, which may be distributed to machines in any way. Their counts are added.

Shapes: S rows, D dimensions, R (row, relevant row) pairs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ratchet.errors import ModelError
from ratchet.models.search.exact_scores import Array
from ratchet.models.search.ranks import RankCounter, Relevant, score_relevant

GROUP_ROWS = 2048
GPU_GROUP_ROWS = 8192
"""Each pair of groups costs some milliseconds on the host of a GPU, so groups are larger there."""

CHUNK_ROWS = 512
"""Rows of a group that a CPU core multiplies and counts at a time: the scores stay in its cache."""


class SymmetricRankCounter:
    """Counts, group by group, the rows ranked before each relevant row. A row does not rank itself.

    relevant: for all S rows; no row is relevant to itself. Raises ModelError as `RankCounter` does.
    """

    def __init__(
        self, vectors_SD: Array, relevant: Relevant, *, device: str = "cpu", group_rows: int | None = None
    ) -> None:
        if len(relevant.indptr) - 1 != len(vectors_SD):
            raise ModelError(
                f"SymmetricRankCounter: relevant has {len(relevant.indptr) - 1} queries for {len(vectors_SD)} rows; "
                "expected each row to be a query; give rows that ask nothing an empty list"
            )
        self.vectors_SD, self.relevant, self.device = vectors_SD, relevant, device
        self.group_rows = group_rows or (GROUP_ROWS if device == "cpu" else GPU_GROUP_ROWS)
        self.scores_R = score_relevant(vectors_SD, relevant, vectors_SD)

    def count(self, first: int, stop: int, done: Callable[[int], None] = lambda row: None) -> np.ndarray:
        """Return the counts of the groups that begin in rows [first, stop), int64 [R]. Their sum over ranges that cover
        every row once is the number of rows before each relevant row. done(row) is called after each group."""
        starts = range(0, len(self.vectors_SD), self.group_rows)
        counters: dict[int, RankCounter] = {}
        for number, start in enumerate(starts):
            if first <= start < stop:
                counter = counters[number] = counters.get(number) or self._make_counter(start)
                counter.add(start, self.vectors_SD[start : start + self.group_rows])
                rest = following_groups(number, len(starts))
                for other in rest:
                    counters[other] = counters.get(other) or self._make_counter(starts[other])
                counter.add_mutually(start, [(starts[other], counters[other]) for other in rest])
                done(min(start + self.group_rows, stop))
        before_R = np.zeros(len(self.relevant.indices), np.int64)
        for number, counter in counters.items():
            before_R[self._pair_slice(starts[number])] += counter.before_R
        return before_R

    def _make_counter(self, start: int) -> RankCounter:
        vectors_GD = self.vectors_SD[start : start + self.group_rows]
        stop = start + len(vectors_GD)
        return RankCounter(
            self.relevant.select(start, stop),
            self.scores_R[self._pair_slice(start)],
            query_QD=vectors_GD,
            exclude_Q=np.arange(start, stop),
            device=self.device,
            query_rows=CHUNK_ROWS if self.device == "cpu" else self.group_rows,
            block_rows=self.group_rows,
        )

    def _pair_slice(self, start: int) -> slice:
        """The pairs of the group that begins at row `start`."""
        indptr = self.relevant.indptr
        return slice(int(indptr[start]), int(indptr[min(start + self.group_rows, len(indptr) - 1)]))


def following_groups(number: int, groups: int) -> list[int]:
    """Return the groups that group `number` is multiplied by besides itself: the half of the ring that follows. With an
    even number of groups, of two opposite groups the lower one takes the other."""
    half = (groups - 1) // 2 + (groups % 2 == 0 and number < groups // 2)
    return [(number + distance) % groups for distance in range(1, half + 1)]
