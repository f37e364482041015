"""Pairs of statements of the same paper, drawn anew in each epoch.

Each epoch shuffles every paper's statements and puts neighbours together, so that each statement appears about once; an
odd one takes any other of its paper. All of it is a function of (seed, epoch): any worker can make any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.errors import DataError
from data.papers import numbers
from data.triplets import deal


@dataclass(frozen=True)
class PairStep:
    """A worker's share of a step; int64, rows of the table of statements."""

    left_N: np.ndarray
    right_N: np.ndarray
    paper_N: np.ndarray
    """Equal exactly where the paper is."""
    pairs: int
    """Of all workers."""


class Pairing:
    """Statements (`data.papers.STATEMENTS`); papers with fewer than two are left out.

    batch: pairs per step of each epoch, the last number for all that follow. drop_last: leave out an epoch's last
    pairs where they do not fill a batch. Raises DataError where there is not a single step.
    """

    def __init__(self, statements: pa.Table, batch: Sequence[int], *, drop_last: bool) -> None:
        self._text: pa.ChunkedArray = statements["text"]
        self._starts = np.cumsum([0, *(len(chunk) for chunk in self._text.chunks)])[:-1]
        self._paper_S = numbers(statements)
        counts = np.bincount(self._paper_S)
        self._usable_U = np.flatnonzero(counts[self._paper_S] >= 2)
        """Rows of papers that have pairs."""
        self._length_S = pc.utf8_length(self._text).to_numpy()
        self.pairs = int(((counts[counts >= 2] + 1) // 2).sum())
        """Of an epoch."""
        self.papers = int((counts >= 2).sum())
        """With pairs."""
        self.batch, self.drop_last = tuple(batch), drop_last
        self._kept: tuple[tuple[int, int], np.ndarray] = ((-1, -1), np.zeros((0, 2), np.int64))
        if not self.pairs:
            raise DataError("statements: no paper has two; expected some, to be paired; give other papers")
        if drop_last and self.pairs < max(self.batch):
            raise DataError(
                f"batch: {max(self.batch)} given, for {self.pairs} pairs in an epoch, where drop_last leaves out"
                " batches that are not full; expected at least one full batch; lower batch, or drop_last=false"
            )

    def texts(self, row_N: np.ndarray) -> list[str]:
        """Shard by shard: Arrow would put all of them together first, and so read the whole disk."""
        texts = np.empty(len(row_N), object)
        shard_N = np.searchsorted(self._starts, row_N, side="right") - 1
        for shard in np.unique(shard_N):
            here = np.flatnonzero(shard_N == shard)
            rows = pa.array(row_N[here] - self._starts[shard])
            texts[here] = self._text.chunk(int(shard)).take(rows).to_pylist()
        return texts.tolist()

    def of_epoch(self, epoch: int) -> int:
        """The batch of an epoch."""
        return self.batch[min(epoch, len(self.batch) - 1)]

    def steps(self, epoch: int) -> int:
        """Steps of an epoch."""
        batch = self.of_epoch(epoch)
        return self.pairs // batch if self.drop_last else -(-self.pairs // batch)

    def all_pairs(self, seed: int, epoch: int) -> np.ndarray:
        """An epoch's pairs in the order of its steps: int64 [pairs, 2]."""
        if self._kept[0] == (seed, epoch):
            return self._kept[1]
        random = np.random.default_rng([seed, epoch])
        usable_U, paper_U = self._usable_U, self._paper_S[self._usable_U]
        shuffled_U = usable_U[np.lexsort((random.random(len(usable_U)), paper_U))]
        first_U = np.flatnonzero(np.r_[True, np.diff(paper_U) != 0])
        count_P = np.diff(np.r_[first_U, len(usable_U)])
        place_U = np.arange(len(usable_U)) - np.repeat(first_U, count_P)
        left = np.flatnonzero(place_U % 2 == 0)
        size, place = np.repeat(count_P, count_P)[left], place_U[left]
        # An odd one is the last of its paper: any of those before it.
        other = np.where(place + 1 < size, place + 1, random.integers(0, np.maximum(size - 1, 1)))
        pairs = np.stack([shuffled_U[left], shuffled_U[left - place + other]], axis=1)
        self._kept = (seed, epoch), random.permutation(pairs)
        return self._kept[1]

    def step(self, seed: int, epoch: int, number: int, rank: int, workers: int) -> PairStep:
        """Step `number` of an epoch. Each worker gets about as many pairs of each length."""
        batch = self.of_epoch(epoch)
        pairs = self.all_pairs(seed, epoch)[number * batch : (number + 1) * batch]
        mine = pairs[deal(self._length_S[pairs].sum(axis=1), workers)[rank]]
        return PairStep(mine[:, 0], mine[:, 1], self._paper_S[mine[:, 0]], len(pairs))
