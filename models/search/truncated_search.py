"""Search by the first dimensions of vectors, alone and with its best documents reordered by all dimensions.

Shapes: Q queries, R relevant documents of all queries, N documents, D dimensions, K reordered documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ratchet.models.search.products import Blocks
from ratchet.models.search.ranks import Relevant, rank_and_search, score_relevant


def rank_truncated(
    query_QD: np.ndarray,
    relevant: Relevant,
    read_blocks: Callable[[], Blocks],
    dim: int,
    depth: int,
    own_Q: np.ndarray,
    device: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact ranks of the relevant documents by the first `dim` dimensions, and their ranks after the best
    `depth` documents of that search are reordered by all dimensions; int64 [R] both.

    Vectors of length 1 are scaled to length 1 after truncation. own_Q: see `multiply`, exclude_Q."""
    unit = bool(np.allclose(np.linalg.norm(query_QD, axis=1), 1, atol=1e-3))

    def truncate(vectors_ND: np.ndarray) -> np.ndarray:
        few_Nd = vectors_ND[:, :dim]
        if unit:
            few_Nd = few_Nd / np.maximum(np.linalg.norm(few_Nd, axis=1, keepdims=True), 1e-12)
        return few_Nd

    def read_truncated() -> Iterator[tuple[int, np.ndarray]]:
        for first, block_ND in read_blocks():
            yield first, truncate(block_ND)

    few_Qd = truncate(query_QD)
    rank_R, few_QK, row_QK = rank_and_search(
        few_Qd, relevant, read_truncated, depth, exclude_Q=own_Q, device=device
    )
    found = Relevant(np.arange(len(row_QK) + 1) * row_QK.shape[1], row_QK.ravel())
    score_QK = score_relevant(query_QD, found, read_blocks()).reshape(row_QK.shape)
    score_QK[np.isneginf(few_QK)] = -np.inf  # the query itself
    again_R = rank_R.copy()
    for r in np.flatnonzero(rank_R <= depth):
        row_K = row_QK[relevant.query_R[r]]
        score_K = score_QK[relevant.query_R[r]]
        own = score_K[row_K == relevant.indices[r]]
        before_K = (score_K > own) | (
            (score_K == own) & (row_K < relevant.indices[r])
        )  # ties as in a whole ranking
        again_R[r] = 1 + before_K.sum()
    return rank_R, again_R
