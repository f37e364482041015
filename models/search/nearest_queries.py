"""Documents that are found through the training queries nearest to a query: distance-weighted kNN (Dudani 1976)."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix

from ratchet.models.search.ranks import Relevant


def vote(scores_QK: np.ndarray, rows_QK: np.ndarray, relevant: Relevant, documents: int) -> csr_matrix:
    """Return the votes for N documents, sparse float32 [Q, N]. Each of the K - 1 nearest training queries votes for its
    relevant documents. The weight of the vote is its score minus that of the K-th nearest query.

    scores_QK, rows_QK: the K nearest of T training queries, from `top_k`. relevant: the documents of all T queries."""
    queries, width = scores_QK.shape
    weights_QK = np.maximum(scores_QK[:, :-1] - scores_QK[:, -1:], 0)
    ends = np.arange(queries + 1) * (width - 1)
    shape = len(relevant.indptr) - 1, documents
    own_TN = csr_matrix((np.ones(len(relevant.indices), np.float32), relevant.indices, relevant.indptr), shape)
    return csr_matrix((weights_QK.ravel(), rows_QK[:, :-1].ravel(), ends), (queries, shape[0])) @ own_TN


def rank_by_votes(
    votes_QN: csr_matrix, relevant: Relevant, exclude_Q: np.ndarray, top: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rank N documents by votes, documents with equal votes by row. Return what `rank_in_blocks` returns. The time
    grows with the documents that have votes, not with N."""
    documents = votes_QN.shape[1]
    width = min(top, votes_QN.shape[1])
    ranks_R = np.zeros(len(relevant.indices), np.int64)
    scores_QK, rows_QK = (np.zeros((len(exclude_Q), width), kind) for kind in (np.float32, np.int64))
    for q, excluded in enumerate(exclude_Q.tolist()):
        row_V, vote_V = (
            part[votes_QN.indptr[q] : votes_QN.indptr[q + 1]] for part in (votes_QN.indices, votes_QN.data)
        )
        order = np.lexsort((row_V, -vote_V))
        order = order[vote_V[order] > 0]
        row_V = row_V[order]
        vote_V = vote_V[order]
        others = np.setdiff1d(np.arange(min(documents, width + len(row_V))), row_V)
        rows_QK[q] = np.concatenate([row_V, others])[:width]
        scores_QK[q] = np.pad(vote_V, (0, len(others)))[:width]
        row_V = row_V[row_V != excluded]
        for r in range(relevant.indptr[q], relevant.indptr[q + 1]):
            row = relevant.indices[r]
            before = np.flatnonzero(row_V == row)
            # Behind the documents with votes, the others follow by row.
            behind = len(row_V) + row - np.count_nonzero(row_V < row) - int(0 <= excluded < row)
            ranks_R[r] = 1 + (before[0] if len(before) else behind)
    return ranks_R, scores_QK, rows_QK
