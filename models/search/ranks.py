"""Exact ranks of the relevant documents in the full ranking, which is neither sorted nor stored.

The rank of a relevant document is 1 + the number of documents with a higher score, or an equal score and a lower row:
the order of `top_k.py`. Counts over parts of the corpus are added, so blocks may come in any order, and shards may be
counted on different machines (`RankCounter.merge`).

Counts must not depend on the rounding of a multiplication, which could put a duplicate or a near tie on either side.
Therefore the scores of the relevant documents are computed once with `compute_exact_scores`. Each block is multiplied:
scores beyond the error bound are counted directly, and pairs within it are scored with `compute_exact_scores`.

Shapes: Q queries, N corpus rows, D dimensions, R (query, relevant document) pairs of all queries.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ratchet.errors import ModelError
from ratchet.models.search.count_kernel import count_above, find_near_columns
from ratchet.models.search.exact_scores import (
    Array,
    Blocks,
    Corpus,
    check_finite,
    get_buffer,
    multiply,
    single_threaded_pool,
)

ONE_SIDE = np.float32(1.04)
"""Factor on the error bound of a multiplied score: the exact score it is compared with is rounded in its last bit."""

PAIRS_AT_ONCE = 4096
"""Rows of scores that are counted at a time on a GPU."""


@dataclass(frozen=True)
class Relevant:
    """The relevant corpus rows of each query in CSR form: those of query q are indices[indptr[q] : indptr[q + 1]].

    indptr: int64 [Q + 1]. indices: int64 [R]. grades: float64 [R], above 0; None: all 1."""

    indptr: np.ndarray
    indices: np.ndarray
    grades: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, kind in (("indptr", np.int64), ("indices", np.int64), ("grades", np.float64)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), kind))
        indptr, indices = self.indptr, self.indices
        if not len(indptr) or indptr[0] != 0 or indptr[-1] != len(indices) or np.any(np.diff(indptr) < 0):
            raise ModelError(
                f"Relevant: indptr has {len(indptr)} entries for {len(indices)} indices; expected it to rise from 0 to "
                "the number of indices; give one more entry than queries"
            )
        if self.grades is not None and (len(self.grades) != len(indices) or not np.all(self.grades > 0)):
            raise ModelError(
                f"Relevant: {len(self.grades)} grades for {len(indices)} relevant documents; expected one above 0 for "
                "each; leave out what is not relevant"
            )
        order = np.lexsort((indices, self.query_R))
        same = (np.diff(indices[order]) == 0) & (np.diff(self.query_R[order]) == 0)
        if np.any(same) or np.any(indices < 0):
            at = int(order[np.argmax(same)]) if np.any(same) else int(np.argmin(indices))
            raise ModelError(
                f"Relevant: row {indices[at]} of query {self.query_R[at]}; expected rows from 0, each once per query; "
                "remove duplicates"
            )

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]], grades: Sequence[Sequence[float]] | None = None) -> Relevant:
        """Make it from one list of corpus rows per query, and their grades in the same order."""
        indptr = np.cumsum([0, *(len(rows) for rows in lists)])
        flat = np.fromiter((row for rows in lists for row in rows), np.int64, int(indptr[-1]))
        return cls(indptr, flat, None if grades is None else np.array([grade for part in grades for grade in part]))

    @property
    def query_R(self) -> np.ndarray:
        """The query of each pair, int64 [R]."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


def score_relevant(query_QD: Array, relevant: Relevant, corpus: Blocks) -> np.ndarray:
    """The relevant documents' scores, float32 [R], as `compute_exact_scores` computes them; NaN where `corpus` does not
    hold the row (a shard: the shards' results are put together with np.fmax). One block is held at a time."""
    query = check_finite(query_QD, "score_relevant: query_QD")[0]
    scores_R = np.full(len(relevant.indices), np.nan, np.float32)
    query_R = relevant.query_R
    for offset, block in [(0, corpus)] if isinstance(corpus, np.ndarray | torch.Tensor) else corpus:
        here = np.flatnonzero((relevant.indices >= offset) & (relevant.indices < offset + len(block)))
        if len(here):
            one = Corpus(query)
            for _ in one.add_all([(offset, block)], len(block)):
                scores_R[here] = one.compute_scores(query_R[here], relevant.indices[here])
    return scores_R


class RankCounter:
    """Counts, block by block, the documents ranked before each relevant one.

    scores_R: float32 [R], `score_relevant` (or the pairs' own entries of given score matrices, for `add_scores`).
    exclude_Q: a corpus row per query that is not ranked (the query itself), -1 for none; never a relevant one.
    Every corpus row must be added exactly once over all counters that are merged.
    """

    def __init__(
        self,
        relevant: Relevant,
        scores_R: np.ndarray,
        *,
        query_QD: Array | None = None,
        exclude_Q: np.ndarray | None = None,
        device: str = "cpu",
        query_rows: int = 512,
        block_rows: int = 4096,
    ) -> None:
        self.relevant, self.scores_R, self.device = relevant, np.asarray(scores_R, np.float32), device
        self.query_rows, self.block_rows = query_rows, block_rows
        self.compiled = torch.device(device).type == "cpu"
        self.before_R = np.zeros(len(relevant.indices), np.int64)
        self.rows = 0
        queries = len(relevant.indptr) - 1
        self._asked: Corpus | None = None
        if query_QD is not None:
            self._asked = Corpus(check_finite(query_QD, "RankCounter: query_QD")[0])
            self._there_QD = self._asked.query_QD.to(device)
        self.exclude_Q = np.full(queries, -1, np.int64) if exclude_Q is None else np.asarray(exclude_Q, np.int64)
        given = queries if self._asked is None else len(self._asked.query_QD)
        if len(self.exclude_Q) != queries or given != queries:
            raise ModelError(
                f"RankCounter: relevant has {queries} queries, exclude_Q {len(self.exclude_Q)}, query_QD {given}; "
                "expected the same; give one row per query"
            )
        missing = np.flatnonzero(~np.isfinite(self.scores_R))
        if len(self.scores_R) != len(relevant.indices) or len(missing):
            at = int(missing[0]) if len(missing) else len(self.scores_R)
            raise ModelError(
                f"RankCounter: the relevant pair {at} has no finite score; expected one for each of "
                f"{len(relevant.indices)}; see that score_relevant saw the whole corpus and that it holds every row"
            )
        if np.any(self.exclude_Q[relevant.query_R] == relevant.indices):
            at = int(np.argmax(self.exclude_Q[relevant.query_R] == relevant.indices))
            raise ModelError(
                f"RankCounter: query {relevant.query_R[at]} excludes row {relevant.indices[at]}, which is relevant to "
                "it; expected another; remove it from one of the two"
            )
        asking_q = np.flatnonzero(np.diff(relevant.indptr))
        self._chunks = [asking_q[start : start + query_rows] for start in range(0, len(asking_q), query_rows)]

    def add(self, row_offset: int, block_ND: Array) -> None:
        """Count a block of the corpus that begins at row `row_offset`."""
        if self._asked is None:
            raise ModelError("RankCounter.add: there are no query vectors; expected query_QD; give it at construction")
        corpus, kept = self._asked.without_blocks(), threading.local()
        with single_threaded_pool(self.device) as executor:
            for offset, piece in corpus.add_all([(row_offset, block_ND)], self.block_rows):
                piece_ND = piece.to(self.device)

                def count(query_q: np.ndarray, offset: int = offset, piece_ND: torch.Tensor = piece_ND) -> None:
                    chunk_QD = self._there_QD[torch.from_numpy(query_q).to(self.device)]
                    scores = multiply(chunk_QD, piece_ND, kept)
                    self._count(
                        query_q, scores, offset, corpus.bound_error(query_q), corpus.compute_scores, self.before_R
                    )

                list(executor.map(count, self._chunks))
        self.rows += len(block_ND)

    def add_mutually(self, row_offset: int, others: Iterable[tuple[int, RankCounter]]) -> None:
        """Count the queries of `others` as documents for ours and the reverse, by the same multiplications.

        Queries are consecutive rows of the corpus: ours from `row_offset`, those of another counter from the row that
        is given with it.
        """
        query_QD, adding = self._there_QD, threading.Lock()
        kept, turned_kept = threading.local(), threading.local()

        def count(task: tuple[_Mutual, int]) -> None:
            pair, start = task
            query_q = np.arange(start, min(start + self.query_rows, len(query_QD)))
            scores_qN = multiply(query_QD[start : start + len(query_q)], pair.other._there_QD, kept)
            scores_Nq = get_buffer((len(pair.every_n), len(query_q)), scores_qN, turned_kept).copy_(scores_qN.T)
            # Each thread has its own counts, since several count for the same queries at a time.
            before_R, their_before_R = np.zeros_like(self.before_R), np.zeros_like(pair.other.before_R)
            self._count(
                query_q, scores_qN, pair.offset, pair.ours.bound_error(query_q), pair.ours.compute_scores, before_R
            )
            scores = pair.theirs.compute_scores
            pair.other._count(pair.every_n, scores_Nq, row_offset + start, pair.error_n, scores, their_before_R)
            with adding:
                self.before_R += before_R
                pair.other.before_R += their_before_R

        pairs = [_Mutual(self, row_offset, other, offset) for offset, other in others]
        with single_threaded_pool(self.device) as executor:
            list(executor.map(count, itertools.product(pairs, range(0, len(query_QD), self.query_rows))))
        for pair in pairs:
            self.rows += len(pair.every_n)
            pair.other.rows += len(query_QD)

    def add_scores(self, row_offset: int, scores_QN: np.ndarray, query_offset: int = 0) -> None:
        """Count given scores (BM25) of queries [query_offset, query_offset + Q'): equal scores are ties, no rounding.

        `rows` grows with the first queries only, so that chunks of queries may come one after the other."""
        scores_QN = np.asarray(scores_QN, np.float32)
        if np.isnan(scores_QN).any():
            raise ModelError("RankCounter.add_scores: a score is NaN; expected numbers; look where they were computed")
        query_q = np.arange(query_offset, query_offset + len(scores_QN))
        query_q = query_q[np.diff(self.relevant.indptr)[query_q] > 0]
        for start in range(0, len(query_q), self.query_rows):
            some = query_q[start : start + self.query_rows]
            scores = torch.from_numpy(scores_QN[some - query_offset])
            self._count(some, scores, row_offset, np.zeros(len(some), np.float32), None, self.before_R)
        if query_offset == 0:
            self.rows += scores_QN.shape[1]

    def merge(self, other: RankCounter) -> None:
        """Add the counts of another counter for the same queries and scores over other rows."""
        same = np.array_equal(self.relevant.indices, other.relevant.indices)
        if not same or not np.array_equal(self.scores_R, other.scores_R):
            raise ModelError("RankCounter.merge: other rows or scores; expected the same; count the same queries")
        self.before_R += other.before_R
        self.rows += other.rows

    def get_ranks(self) -> np.ndarray:
        """Return the ranks from 1, int64 [R], in the order of `relevant.indices`."""
        return self.before_R + 1

    def _count(
        self,
        query_q: np.ndarray,
        scores: torch.Tensor,
        offset: int,
        error_q: np.ndarray,
        exact: Callable[[np.ndarray, np.ndarray], np.ndarray] | None,
        before_R: np.ndarray,
    ) -> None:
        """Adds a block's documents to before_R. Writes into scores [q, N], which may be on any device."""
        away = self.exclude_Q[query_q] - offset
        inside = np.flatnonzero((away >= 0) & (away < scores.shape[1]))
        scores[torch.from_numpy(inside), torch.from_numpy(away[inside])] = -torch.inf
        first_q, count_q = self.relevant.indptr[query_q], np.diff(self.relevant.indptr)[query_q]
        at_P = np.repeat(np.arange(len(query_q)), count_q)
        pair_P = np.repeat(first_q - (np.cumsum(count_q) - count_q), count_q) + np.arange(len(at_P))
        own_P, error_P = self.scores_R[pair_P], ONE_SIDE * error_q[at_P]
        low_P, high_P = own_P - error_P, own_P + error_P
        if self.compiled:
            above_P, near_P = count_above(scores.numpy(), count_q, low_P, high_P)
        else:
            above_P, near_P = count_above_on_device(scores, at_P, low_P, high_P)
        before_R[pair_P] += above_P
        close_p = np.flatnonzero(near_P)
        if not len(close_p):
            return
        at_p = at_P[close_p]
        if not self.compiled:
            # Only rows with near ties come back.
            row_q, at_p = np.unique(at_p, return_inverse=True)
            scores, query_q = scores[torch.from_numpy(row_q)].cpu(), query_q[row_q]
        p, column = find_near_columns(scores.numpy(), at_p, low_P[close_p], high_P[close_p], near_P[close_p])
        pair_p, row = pair_P[close_p], column + offset
        other = row != self.relevant.indices[pair_p[p]]  # its own column never counts
        p, column, row = p[other], column[other], row[other]
        score = scores.numpy()[at_p[p], column] if exact is None else exact(query_q[at_p[p]], row)
        own = self.scores_R[pair_p[p]]
        before = (score > own) | ((score == own) & (row < self.relevant.indices[pair_p[p]]))
        before_R[pair_p] += np.bincount(p[before], minlength=len(pair_p))


class _Mutual:
    """Two counters whose queries are each other's documents."""

    def __init__(self, one: RankCounter, row_offset: int, other: RankCounter, offset: int) -> None:
        assert one._asked is not None
        assert other._asked is not None
        self.other, self.offset = other, offset
        self.ours = one._asked.with_queries_as_rows(offset, other._asked)
        self.theirs = other._asked.with_queries_as_rows(row_offset, one._asked)
        self.every_n = np.arange(len(other._asked.query_QD))
        self.error_n = self.theirs.bound_error(slice(None))


def count_above_on_device(
    scores_QN: torch.Tensor, at_P: np.ndarray, low_P: np.ndarray, high_P: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `count_kernel.count_above` on the device of the scores. Only counts are copied to the host.

    For P pairs of row at_P of scores_QN: how many scores are above high_P, and how many from low_P to high_P.
    int64 [P] both.
    """
    found = np.zeros((2, len(at_P)), np.int64)
    at, bounds = torch.from_numpy(at_P), torch.from_numpy(np.stack([high_P, low_P]))
    at, bounds = at.to(scores_QN.device), bounds.to(scores_QN.device)
    for start in range(0, len(at_P), PAIRS_AT_ONCE):
        some = slice(start, start + PAIRS_AT_ONCE)
        rows_PN = scores_QN[at[some]]
        above, reaching = (rows_PN > bounds[0, some, None]).sum(1), (rows_PN >= bounds[1, some, None]).sum(1)
        found[:, some] = torch.stack([above, reaching - above]).cpu().numpy()
    return found[0], found[1]


def rank_relevant(
    query_QD: Array,
    relevant: Relevant,
    corpus: Array | Sequence[tuple[int, Array]] | Callable[[], Iterable[tuple[int, Array]]],
    *,
    exclude_Q: np.ndarray | None = None,
    device: str = "cpu",
) -> tuple[np.ndarray, int]:
    """(ranks int64 [R], number of corpus rows): passes over the corpus twice, for the scores and for the counts.

    `corpus` is a matrix, a sequence of (row_offset, block_ND), or a function that gives them anew each time."""

    def blocks() -> Iterable[tuple[int, Array]]:
        if isinstance(corpus, np.ndarray | torch.Tensor):
            return [(0, corpus)]
        return corpus() if callable(corpus) else corpus

    scores_R = score_relevant(query_QD, relevant, blocks())
    counter = RankCounter(relevant, scores_R, query_QD=query_QD, exclude_Q=exclude_Q, device=device)
    for offset, block in blocks():
        counter.add(offset, block)
    return counter.get_ranks(), counter.rows
