"""Documents that are found through the training queries nearest to a query: distance-weighted kNN (Dudani 1976)."""

import numpy as np
from scipy.sparse import csr_matrix

from ratchet.models.search.ranks import Relevant


def vote(
    scores_QK: np.ndarray, rows_QK: np.ndarray, relevant: Relevant, documents: int
) -> csr_matrix:
    """Return the votes for N documents, sparse float32 [Q, N]. Each of the K - 1 nearest training queries votes for its
    relevant documents. The weight of the vote is its score minus that of the K-th nearest query.

    scores_QK, rows_QK: the K nearest of T training queries, from `top_k`. relevant: the documents of all T queries."""
    queries, width = scores_QK.shape
    weights_QK = np.maximum(scores_QK[:, :-1] - scores_QK[:, -1:], 0)
    ends = np.arange(queries + 1) * (width - 1)
    shape = len(relevant.indptr) - 1, documents
    own_TN = csr_matrix(
        (np.ones(len(relevant.indices), np.float32), relevant.indices, relevant.indptr), shape
    )
    return (
        csr_matrix((weights_QK.ravel(), rows_QK[:, :-1].ravel(), ends), (queries, shape[0]))
        @ own_TN
    )
