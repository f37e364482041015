"""Rankings by votes of the nearest queries, against a ranking of all documents by the sums of these votes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from ratchet.models.search.nearest_queries import rank_by_votes
from ratchet.models.search.ranks import Relevant, rank_in_blocks


@pytest.mark.parametrize("top", [1, 7, 40, 1000])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_votes_rank_as_scores_of_all_documents_do(top: int, share: float) -> None:
    """A few different votes, so that many are equal, some of which are 0, and queries that are documents."""
    random = np.random.default_rng(int(share * 10))
    queries, documents = 30, 40
    votes_QN = (
        random.integers(0, 4, (queries, documents)) / np.float32(4) * (random.random((queries, documents)) < share)
    )
    sparse = csr_matrix(votes_QN.astype(np.float32))
    sparse.data[::5] = 0  # what a training query at the distance of the last one gives
    votes_QN = sparse.toarray()
    relevant = Relevant.from_lists([random.choice(documents, q % 4, replace=False) for q in range(queries)])
    exclude_Q = random.integers(-1, documents, queries)
    for q in range(queries):
        if exclude_Q[q] in relevant.indices[relevant.indptr[q] : relevant.indptr[q + 1]]:
            exclude_Q[q] = -1
    found = rank_by_votes(sparse, relevant, exclude_Q, top)
    expected = rank_in_blocks(lambda some: votes_QN[some], documents, relevant, exclude_Q, top, lambda done: None)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_queries_have_no_ranks() -> None:
    found = rank_by_votes(csr_matrix((0, 9), dtype=np.float32), Relevant.from_lists([]), np.zeros(0, np.int64), 5)
    assert [part.shape for part in found] == [(0,), (0, 5), (0, 5)]
