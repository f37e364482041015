"""Training data of statement embedders: pairs of statements from the same paper, drawn anew in each epoch.

Each epoch shuffles the statements of every paper and pairs neighbours, so that each statement is used about once. In a
paper with an odd number, the last one is paired with a random other. Everything is a function of (seed, epoch): any
worker can make any batch.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.data.formats.papers import number_papers
from ratchet.data.triplets import distribute
from ratchet.errors import DataError


@dataclass(frozen=True)
class PairBatch:
    """One worker's part of a batch of N pairs, int64. left and right are rows of the table of statements."""

    left_N: np.ndarray
    right_N: np.ndarray
    paper_N: np.ndarray
    """The number of each pair's paper."""
    pairs: int
    """Number of pairs in the batch, over all workers."""


def count_pairs(count_P: np.ndarray) -> int:
    """Return the number of pairs per epoch, for the number of statements of each paper, int64 [P]."""
    return int(((count_P[count_P >= 2] + 1) // 2).sum())


def check_pairs(pairs: int, batch_size: int) -> None:
    """Raise DataError if an epoch of `pairs` pairs has no batch."""
    if not pairs:
        raise DataError(
            "statements: no paper has two; expected some, to form pairs; give other papers"
        )
    if pairs < batch_size:
        raise DataError(
            f"batch_size: {batch_size} given, for {pairs} pairs in an epoch, which fill no batch; expected at most"
            f" {pairs}; lower batch_size, or give more papers"
        )


class PairSampler:
    """Pairs of statements from a table (`ratchet.data.formats.papers.STATEMENTS`). Papers with one are dropped.

    seed: of all draws. batch_size: pairs per batch; the last, incomplete batch of an epoch is dropped. Raises DataError
    if there is not a single batch."""

    def __init__(self, statements: pa.Table, batch_size: int, seed: int = 0) -> None:
        self.seed = seed
        self.text: pa.ChunkedArray = statements["text"]
        self._paper_S = number_papers(statements)
        counts = np.bincount(self._paper_S)
        self._usable_U = np.flatnonzero(counts[self._paper_S] >= 2)
        """Rows of papers with at least two statements."""
        self._length_S = pc.utf8_length(self.text).to_numpy()
        self.pairs = count_pairs(counts)
        """Number of pairs per epoch."""
        self.papers = int((counts >= 2).sum())
        """Number of papers with at least two statements."""
        self.batch_size = batch_size
        self.num_batches = self.pairs // batch_size
        """Number of batches of an epoch."""
        self._drawn_epoch = -1
        self._drawn = np.zeros((0, 2), np.int64)
        check_pairs(self.pairs, batch_size)

    def draw_pairs(self, epoch: int) -> np.ndarray:
        """Draw the pairs of an epoch, in the order of its batches: int64 [pairs, 2]."""
        if self._drawn_epoch == epoch:
            return self._drawn
        random = np.random.default_rng([self.seed, epoch])
        usable_U = self._usable_U
        paper_U = self._paper_S[self._usable_U]
        shuffled_U = usable_U[np.lexsort((random.random(len(usable_U)), paper_U))]
        first_U = np.flatnonzero(np.r_[True, np.diff(paper_U) != 0])
        count_P = np.diff(np.r_[first_U, len(usable_U)])
        position_U = np.arange(len(usable_U)) - np.repeat(first_U, count_P)
        left = np.flatnonzero(position_U % 2 == 0)
        size = np.repeat(count_P, count_P)[left]
        position = position_U[left]
        # The last of an odd number is paired with any of those before it.
        drawn = random.integers(0, np.maximum(size - 1, 1))
        other = np.where(position + 1 < size, position + 1, drawn)
        right = left - position + other
        pairs = np.stack([shuffled_U[left], shuffled_U[right]], axis=1)
        self._drawn_epoch = epoch
        self._drawn = random.permutation(pairs)
        return self._drawn

    def batch(self, epoch: int, step: int, worker_rank: int = 0, workers: int = 1) -> PairBatch:
        """Make the batch of a training step of an epoch, for one worker. All workers get about as many pairs of each
        length."""
        first = step * self.batch_size
        pairs = self.draw_pairs(epoch)[first : first + self.batch_size]
        lengths = self._length_S[pairs].sum(axis=1)
        mine = distribute(lengths, workers)[worker_rank]
        left = pairs[mine, 0]
        right = pairs[mine, 1]
        return PairBatch(left, right, self._paper_S[left], len(pairs))
