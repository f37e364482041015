"""Exact ranks of the relevant documents in the full ranking, which is neither sorted nor stored.

The rank of a relevant document is 1 + the number of documents with a higher score, or an equal score and a lower row:
the order of `top_k.py`. Counts over parts of the corpus are added, so blocks may come in any order, and shards may be
counted on different machines (`RankCounter.before_R`).

Counts must not depend on the rounding of a multiplication, which could put a duplicate or a near tie on either side.
Therefore the scores of the relevant documents are computed once with `compute_exact_scores`. Each block is multiplied:
scores beyond the error bound are counted directly, and pairs within it are scored with `compute_exact_scores`.

Shapes: Q queries, N corpus rows, D dimensions, R (query, relevant document) pairs of all queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ratchet.errors import ModelError
from ratchet.models.search.exact_scores import Array, Blocks, Corpus, check_finite, iterate_blocks, multiply_all
from ratchet.models.search.kernels import count_above, find_near_columns
from ratchet.models.search.top_k import decode_rows, decode_scores, encode_keys

ONE_SIDE = np.float32(1.04)
"""Factor on the error bound of a multiplied score: the exact score it is compared with is rounded in its last bit."""

SCORES_AT_ONCE = 1 << 25
"""Scores that `rank_in_blocks` ranks at a time. Copies and keys take some 24 bytes per score."""

PAIRS_AT_ONCE = 4096
"""(query, relevant document) pairs whose rows of scores are counted at a time on a GPU."""


@dataclass(frozen=True)
class Relevant:
    """The relevant corpus rows of each query in CSR form: those of query q are indices[indptr[q] : indptr[q + 1]].

    indptr: int64 [Q + 1], rising from 0 to R. indices: int64 [R]. grades: float64 [R], above 0; None: all 1. Raises
    ModelError for a row that a query has twice."""

    indptr: np.ndarray
    indices: np.ndarray
    grades: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, kind in (("indptr", np.int64), ("indices", np.int64), ("grades", np.float64)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), kind))
        order = np.lexsort((self.indices, self.query_R))
        same = (np.diff(self.indices[order]) == 0) & (np.diff(self.query_R[order]) == 0)
        if np.any(same):
            at = int(order[np.argmax(same)])
            raise ModelError(
                f"Relevant: row {self.indices[at]} of query {self.query_R[at]}; expected each row once per query; "
                "remove duplicates"
            )

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]], grades: Sequence[Sequence[float]] | None = None) -> Relevant:
        """Make an instance from one list of corpus rows per query, and their grades in the same order."""
        indptr = np.cumsum([0, *(len(rows) for rows in lists)])
        flat = np.fromiter((row for rows in lists for row in rows), np.int64, int(indptr[-1]))
        return cls(indptr, flat, None if grades is None else np.array([grade for part in grades for grade in part]))

    def select(self, start: int, stop: int) -> Relevant:
        """Return the relevant rows of the queries from `start` up to `stop` (exclusive), without grades."""
        indptr = self.indptr[start : stop + 1]
        return Relevant(indptr - indptr[0], self.indices[indptr[0] : indptr[-1]])

    @property
    def query_R(self) -> np.ndarray:
        """The query of each pair, int64 [R]."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


def score_relevant(query_QD: Array, relevant: Relevant, corpus: Blocks) -> np.ndarray:
    """Return the relevant documents' scores, float32 [R], as `compute_exact_scores` computes them. They are NaN for
    rows that `corpus` lacks: for one shard each, combine the results with np.fmax. One block is held at a time."""
    queries = check_finite(query_QD, "score_relevant: query_QD")
    scores_R = np.full(len(relevant.indices), np.nan, np.float32)
    query_R = relevant.query_R
    for offset, block in iterate_blocks(corpus):
        here = np.flatnonzero((relevant.indices >= offset) & (relevant.indices < offset + len(block)))
        if len(here):
            row_n, number_P = np.unique(relevant.indices[here] - offset, return_inverse=True)
            one = Corpus(*queries)
            one.add(0, block[row_n])  # a copy of these rows; the others of a mapped block are not read
            scores_R[here] = one.compute_scores(query_R[here], number_P)
    return scores_R


def rank_by_scores(scores_QN: np.ndarray, relevant: Relevant, exclude_Q: np.ndarray | None = None) -> np.ndarray:
    """Return the ranks of the relevant documents by given scores (BM25), int64 [R] from 1. scores_QN: float32, never
    NaN; equal scores are ordered by row. exclude_Q: see `RankCounter`."""
    if exclude_Q is not None:
        scores_QN = scores_QN.copy()
        scores_QN[exclude_Q >= 0, exclude_Q[exclude_Q >= 0]] = -np.inf
    query_R = relevant.query_R
    own_R = scores_QN[relevant.query_R, relevant.indices]
    before_R, equal_R = count_above(scores_QN, np.diff(relevant.indptr), own_R, own_R)
    for r in np.flatnonzero(equal_R > 1):  # its own score is one of them
        before_R[r] += np.count_nonzero(scores_QN[query_R[r], : relevant.indices[r]] == own_R[r])
    return before_R + 1


def rank_in_blocks(
    score: Callable[[slice], np.ndarray],
    documents: int,
    relevant: Relevant,
    exclude_Q: np.ndarray,
    top: int,
    report: Callable[[int], None],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank N documents by given scores, a block of queries at a time. Return the ranks of `rank_by_scores` [R], and
    float32 scores and int64 rows of the best documents [Q, min(top, N)], with those of `exclude_Q`.

    score: returns float32 scores [q, N] of the queries in a slice. report: called with the number of queries done."""
    width = min(top, documents)
    row_N = np.arange(documents)
    queries = len(relevant.indptr) - 1
    ranks = [np.zeros(0, np.int64)]
    best = [np.zeros((0, width), np.uint64)]
    block = max(1, min(256, SCORES_AT_ONCE // documents))
    for start in range(0, queries, block):
        stop = min(start + block, queries)
        scores_qN = score(slice(start, stop))
        best.append(np.partition(encode_keys(scores_qN, row_N), width - 1, axis=1)[:, :width])
        ranks.append(rank_by_scores(scores_qN, relevant.select(start, stop), exclude_Q[start:stop]))
        report(stop)
    keys_QK = np.sort(np.concatenate(best), axis=1)
    return np.concatenate(ranks), decode_scores(keys_QK), decode_rows(keys_QK)


class RankCounter:
    """Counter, block by block, of the documents ranked before each relevant one.

    scores_R: float32 [R], `score_relevant` of the whole corpus. query_QD: a row for each query. exclude_Q: a corpus row
    per query that is not ranked (the query itself), -1 for none; never a relevant one. Every corpus row must be added
    exactly once, to one of the counters whose counts are added."""

    def __init__(
        self,
        relevant: Relevant,
        scores_R: np.ndarray,
        *,
        query_QD: Array,
        exclude_Q: np.ndarray | None = None,
        device: str = "cpu",
        query_rows: int = 512,
        block_rows: int = 4096,
    ) -> None:
        self.relevant = relevant
        self.scores_R = np.asarray(scores_R, np.float32)
        self.device = device
        self.block_rows = block_rows
        self.compiled = torch.device(device).type == "cpu"
        self.before_R = np.zeros(len(relevant.indices), np.int64)
        """The number of documents before each relevant one, int64 [R]."""
        self._queries = check_finite(query_QD, "RankCounter: query_QD")
        self._there_QD = self._queries[0].to(device)
        nobody_Q = np.full(len(relevant.indptr) - 1, -1)
        self.exclude_Q = np.asarray(nobody_Q if exclude_Q is None else exclude_Q, np.int64)
        asking_q = np.flatnonzero(np.diff(relevant.indptr))
        self._chunks = [asking_q[start : start + query_rows] for start in range(0, len(asking_q), query_rows)]

    def add(self, row_offset: int, block_ND: Array) -> None:
        """Count a block of the corpus that begins at row `row_offset`."""
        corpus = Corpus(*self._queries)

        def count(number: int, offset: int, scores: torch.Tensor) -> None:
            self.count(self._chunks[number], scores, offset, corpus)

        chunks = []
        for query_q in self._chunks:
            chunks.append(torch.from_numpy(query_q).to(self.device))
        pieces = corpus.add_all([(row_offset, block_ND)], self.block_rows)
        multiply_all(self._there_QD, chunks, pieces, self.device, count)

    def count(self, query_q: np.ndarray, scores: torch.Tensor, offset: int, corpus: Corpus) -> None:
        """Count the documents of a block by their multiplied scores [q, N], on any device; the scores are changed.
        corpus: holds the block."""
        away = self.exclude_Q[query_q] - offset
        inside = np.flatnonzero((away >= 0) & (away < scores.shape[1]))
        scores[torch.from_numpy(inside), torch.from_numpy(away[inside])] = -torch.inf
        first_q = self.relevant.indptr[query_q]
        count_q = np.diff(self.relevant.indptr)[query_q]
        at_P = np.repeat(np.arange(len(query_q)), count_q)
        pair_P = np.repeat(first_q - (np.cumsum(count_q) - count_q), count_q) + np.arange(len(at_P))
        own_P = self.scores_R[pair_P]
        error_P = ONE_SIDE * corpus.bound_error(query_q)[at_P]
        low_P = own_P - error_P
        high_P = own_P + error_P
        if self.compiled:
            above_P, near_P = count_above(scores.numpy(), count_q, low_P, high_P)
        else:
            above_P, near_P = count_above_on_device(scores, at_P, low_P, high_P)
        self.before_R[pair_P] += above_P
        close_p = np.flatnonzero(near_P)
        if not len(close_p):
            return
        at_p = at_P[close_p]
        if not self.compiled:
            # Only rows with near ties come back.
            row_q, at_p = np.unique(at_p, return_inverse=True)
            scores = scores[torch.from_numpy(row_q)].cpu()
            query_q = query_q[row_q]
        p, column = find_near_columns(scores.numpy(), at_p, low_P[close_p], high_P[close_p], near_P[close_p])
        pair_p = pair_P[close_p]
        row = column + offset
        other = row != self.relevant.indices[pair_p[p]]  # its own column never counts
        p = p[other]
        row = row[other]
        score = corpus.compute_scores(query_q[at_p[p]], row)
        own = self.scores_R[pair_p[p]]
        before = (score > own) | ((score == own) & (row < self.relevant.indices[pair_p[p]]))
        self.before_R[pair_p] += np.bincount(p[before], minlength=len(pair_p))


def count_above_on_device(
    scores_QN: torch.Tensor, at_P: np.ndarray, low_P: np.ndarray, high_P: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute `kernels.count_above` on the device of the scores. Only counts are copied to the host.

    Return, for P pairs with row at_P, the number of scores above high_P and from low_P to high_P: int64 [P] both."""
    found = np.zeros((2, len(at_P)), np.int64)
    at = torch.from_numpy(at_P)
    bounds = torch.from_numpy(np.stack([high_P, low_P]))
    at = at.to(scores_QN.device)
    bounds = bounds.to(scores_QN.device)
    for start in range(0, len(at_P), PAIRS_AT_ONCE):
        some = slice(start, start + PAIRS_AT_ONCE)
        rows_PN = scores_QN[at[some]]
        above = (rows_PN > bounds[0, some, None]).sum(1)
        reaching = (rows_PN >= bounds[1, some, None]).sum(1)
        found[:, some] = torch.stack([above, reaching - above]).cpu().numpy()
    return found[0], found[1]


def rank_relevant(
    query_QD: Array,
    relevant: Relevant,
    read_blocks: Callable[[], Iterable[tuple[int, Array]]],
    *,
    exclude_Q: np.ndarray | None = None,
    device: str = "cpu",
) -> np.ndarray:
    """Return the ranks from 1, int64 [R]. Passes over the corpus twice, for the scores and for the counts:
    `read_blocks` gives its (row_offset, block_ND) anew each time."""
    scores_R = score_relevant(query_QD, relevant, read_blocks())
    counter = RankCounter(relevant, scores_R, query_QD=query_QD, exclude_Q=exclude_Q, device=device)
    for offset, block in read_blocks():
        counter.add(offset, block)
    return counter.before_R + 1
