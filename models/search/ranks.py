"""Exact ranks of the relevant documents in the full ranking, which is neither sorted nor stored.

The rank of a relevant document is 1 + the number of documents with a higher score, or an equal score and a lower row:
the order of `top_k.py`. Counts over parts of the corpus are added, so blocks may come in any order, and shards may be
counted on different machines (`RankCounter.before_R`).

Shapes: Q queries, N corpus rows, D dimensions, R (query, relevant document) pairs of all queries; q queries, n rows and
P pairs of a tile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from ratchet.models.search.products import Blocks, exclude, multiply
from ratchet.models.search.top_k import TopK

SCORES_AT_ONCE = 1 << 25
"""Scores that `rank_in_blocks` ranks at a time. Copies take some 24 bytes per score."""

PAIRS_AT_ONCE = 256
"""(query, relevant document) pairs whose rows of scores are compared at a time."""


@dataclass(frozen=True)
class Relevant:
    """The relevant corpus rows of each query in CSR form: those of query q are indices[indptr[q] : indptr[q + 1]].

    indptr: int64 [Q + 1], rising from 0 to R. indices: int64 [R]. grades: float64 [R], above 0; None: all 1. A
    query has each row once."""

    indptr: np.ndarray
    indices: np.ndarray
    grades: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, kind in (("indptr", np.int64), ("indices", np.int64), ("grades", np.float64)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name), kind))

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]]) -> "Relevant":
        """Make an instance from one list of corpus rows per query."""
        indices = np.array(list(chain.from_iterable(lists)), np.int64)
        return cls(np.cumsum([0, *map(len, lists)]), indices)

    @property
    def query_R(self) -> np.ndarray:
        """The query of each pair, int64 [R]."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


class RankCounter:
    """Counter of the documents before each relevant one, tile by tile.

    scores_R: float32 [R], `score_relevant` of the whole corpus. Every corpus row must be added exactly once, to one of
    the counters whose counts are added."""

    def __init__(self, relevant: Relevant, scores_R: np.ndarray) -> None:
        self.relevant = relevant
        self.scores_R = scores_R
        self.query_R = relevant.query_R
        self.before_R = np.zeros(len(relevant.indices), np.int64)
        """The number of documents before each relevant one, int64 [R]."""

    def add(self, queries: slice, offset: int, scores_qn: torch.Tensor) -> None:
        """Count the documents of a tile of scores, as `multiply` yields them."""
        first, last = self.relevant.indptr[[queries.start, queries.stop]].tolist()
        columns = scores_qn.shape[1]
        for start in range(first, last, PAIRS_AT_ONCE):
            pairs = slice(start, min(start + PAIRS_AT_ONCE, last))
            column_P = self.relevant.indices[pairs] - offset
            own_P = self.scores_R[pairs]
            rows_Pn = scores_qn[
                torch.from_numpy(self.query_R[pairs] - queries.start).to(scores_qn.device)
            ]
            exclude(rows_Pn, column_P)  # a document is not before itself
            for p in np.flatnonzero((column_P >= 0) & (column_P < columns)):
                self.before_R[start + p] += int((rows_Pn[p, : column_P[p]] == own_P[p]).sum())
            # Equal scores count in a tile that is wholly before the document.
            bound_P = np.where(column_P >= columns, np.nextafter(own_P, np.float32(-np.inf)), own_P)
            bound_P1 = torch.from_numpy(bound_P[:, None]).to(scores_qn.device)
            counts_P = torch.gt(rows_Pn, bound_P1, out=rows_Pn).sum(1)
            self.before_R[pairs] += counts_P.long().cpu().numpy()


def score_relevant(query_QD: np.ndarray, relevant: Relevant, corpus: Blocks) -> np.ndarray:
    """Return the scores of the relevant documents, float32 [R]. They are NaN for rows that `corpus` lacks: for one
    shard each, combine the results with np.fmax."""
    scores_R = np.full(len(relevant.indices), np.nan, np.float32)
    query_R = relevant.query_R
    for offset, block in corpus:
        here = np.flatnonzero(
            (relevant.indices >= offset) & (relevant.indices < offset + len(block))
        )
        for start in range(0, len(here), PAIRS_AT_ONCE):
            some = here[start : start + PAIRS_AT_ONCE]
            row_PD = block[relevant.indices[some] - offset].astype(np.float64)
            scores_R[some] = (query_QD[query_R[some]] * row_PD).sum(1)
    return scores_R


def rank_relevant(
    query_QD: np.ndarray,
    relevant: Relevant,
    read_blocks: Callable[[], Blocks],
    *,
    exclude_Q: np.ndarray | None = None,
    device: str = "cpu",
) -> np.ndarray:
    """Return the ranks from 1, int64 [R]. Passes over the corpus twice, for the scores and for the counts:
    `read_blocks` returns its blocks anew each time. exclude_Q: see `multiply`; never a relevant row."""
    counter = RankCounter(relevant, score_relevant(query_QD, relevant, read_blocks()))
    for tile in multiply(query_QD, read_blocks(), device, exclude_Q):
        counter.add(*tile)
    return counter.before_R + 1


def rank_and_search(
    query_QD: np.ndarray,
    relevant: Relevant,
    read_blocks: Callable[[], Blocks],
    k: int,
    *,
    exclude_Q: np.ndarray,
    device: str = "cpu",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ranks of `rank_relevant` [R], and scores and rows of `top_k` [Q, min(k, N)], where a document that is
    excluded has the score -inf."""
    counter = RankCounter(relevant, score_relevant(query_QD, relevant, read_blocks()))
    best = TopK(len(query_QD), k)
    for tile in multiply(query_QD, read_blocks(), device, exclude_Q):
        counter.add(*tile)
        best.add(*tile)
    return counter.before_R + 1, *best.find()


def rank_in_blocks(
    score: Callable[[slice], np.ndarray],
    documents: int,
    relevant: Relevant,
    exclude_Q: np.ndarray,
    top: int,
    report: Callable[[int], None],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank N documents by given scores (BM25), a block of queries at a time. Return what `rank_and_search` returns.

    score: returns float32 scores [q, N] of the queries in a slice, never NaN. report: called with the number of queries
    done."""
    counter = RankCounter(relevant, np.zeros(len(relevant.indices), np.float32))
    best = TopK(len(exclude_Q), top)
    block = max(1, min(256, SCORES_AT_ONCE // documents))
    for start in range(0, len(exclude_Q), block):
        some = slice(start, min(start + block, len(exclude_Q)))
        scores_qN = torch.from_numpy(score(some))
        exclude(scores_qN, exclude_Q[some])
        own = slice(*relevant.indptr[[some.start, some.stop]])
        counter.scores_R[own] = scores_qN[relevant.query_R[own] - start, relevant.indices[own]]
        counter.add(some, 0, scores_qN)
        best.add(some, 0, scores_qN)
        report(some.stop)
    return counter.before_R + 1, *best.find()
