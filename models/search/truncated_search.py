"""Search by the first dimensions of vectors, alone and with its best documents reordered by all dimensions.

Shapes: Q queries, R relevant documents of all queries, N documents, D dimensions, K reordered documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce

import numpy as np

from ratchet.models.search.ranks import Relevant, rank_relevant, score_relevant
from ratchet.models.search.top_k import merge_top_k, top_k


def rank_truncated(
    query_QD: np.ndarray,
    relevant: Relevant,
    read_blocks: Callable[[], Iterable[tuple[int, np.ndarray]]],
    dim: int,
    depth: int,
    own_Q: np.ndarray,
    device: str,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact ranks of the relevant documents by the first `dim` dimensions, and their ranks after the best
    `depth` documents of that search are reordered by all dimensions; int64 [R] both.

    Vectors of length 1 are scaled to length 1 after truncation. own_Q: see `RankCounter.exclude_Q`."""
    unit = bool(np.allclose(np.linalg.norm(query_QD, axis=1), 1, atol=1e-3))

    def truncate(vectors_ND: np.ndarray) -> np.ndarray:
        few_Nd = np.ascontiguousarray(vectors_ND[:, :dim])
        if unit:
            return few_Nd / np.maximum(np.linalg.norm(few_Nd, axis=1, keepdims=True), 1e-12)
        return few_Nd

    def blocks() -> Iterator[tuple[int, np.ndarray]]:
        return ((first, truncate(block_ND)) for first, block_ND in read_blocks())

    few_Qd = truncate(query_QD)
    rank_R = rank_relevant(few_Qd, relevant, blocks, exclude_Q=own_Q, device=device)
    most = depth + 1  # the query itself may be among them
    parts = (top_k(few_Qd, [block], most, device=device) for block in blocks())
    _, row_QK = reduce(lambda best, part: merge_top_k([best, part], most), parts)
    found = Relevant(np.arange(len(row_QK) + 1) * row_QK.shape[1], row_QK.ravel())
    score_QK = score_relevant(query_QD, found, read_blocks()).reshape(row_QK.shape)
    other_QK = row_QK != own_Q[:, None]
    score_QK[~other_QK | (other_QK.cumsum(1) > depth)] = -np.inf
    again_R = rank_R.copy()
    for r in np.flatnonzero(rank_R <= depth):
        row_K = row_QK[relevant.query_R[r]]
        score_K = score_QK[relevant.query_R[r]]
        own = score_K[row_K == relevant.indices[r]]
        before_K = (score_K > own) | ((score_K == own) & (row_K < relevant.indices[r]))  # ties as in a whole ranking
        again_R[r] = 1 + before_K.sum()
    return rank_R, again_R
