"""Exact nearest neighbours by inner product over a corpus in blocks.

A document is before another if its score (`products.py`) is higher, or if the scores are equal and its row is lower.

Shapes: Q queries, N corpus rows, D dimensions, K neighbours, C candidates; q queries and n rows of a tile.
"""

import numpy as np
import torch

from ratchet.models.search.products import Blocks, multiply


class TopK:
    """The k best documents of each query among all tiles that were added."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.floor_Q = torch.full((queries,), -torch.inf)
        """No document with a lower score is among the k best."""
        self.waiting = 0
        self.query_C = np.zeros(0, np.int64)
        self.row_C = np.zeros(0, np.int64)
        self.score_C = np.zeros(0, np.float32)
        self.parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def add(self, queries: slice, offset: int, scores_qn: torch.Tensor) -> None:
        """Add a tile of scores, as `multiply` yields them."""
        floor_q = self.floor_Q[queries].to(scores_qn.device)
        if self.k <= scores_qn.shape[1] and torch.isneginf(floor_q).any():
            kth_q = scores_qn.topk(self.k, dim=1, sorted=False).values.amin(1)
            floor_q = torch.maximum(floor_q, kth_q)
            self.floor_Q[queries] = floor_q.cpu()
        reaching_qn = (scores_qn >= floor_q[:, None]).cpu().numpy()
        at_c = np.flatnonzero(reaching_qn)  # many times as fast as torch.nonzero
        query_c, column_c = np.divmod(at_c, scores_qn.shape[1])
        score_c = scores_qn.flatten()[torch.from_numpy(at_c).to(scores_qn.device)].cpu().numpy()
        self.parts.append((query_c + queries.start, column_c + offset, score_c))
        self.waiting += len(score_c)
        if self.waiting > 4 * self.k * len(self.floor_Q):
            self._cut()

    def find(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scores float32 and rows int64, both [Q, min(k, N)], best first."""
        self._cut()
        queries = len(self.floor_Q)
        width = len(self.row_C) // max(1, queries)
        return self.score_C.reshape(queries, width), self.row_C.reshape(queries, width)

    def _cut(self) -> None:
        """Keep the k best candidates of each query, in order."""
        kept = [(self.query_C, self.row_C, self.score_C), *self.parts]
        query_C, row_C, score_C = (np.concatenate(column) for column in zip(*kept, strict=True))
        order = np.lexsort((row_C, -score_C, query_C))
        counts_Q = np.bincount(query_C, minlength=len(self.floor_Q))
        first_Q = np.cumsum(counts_Q) - counts_Q
        place = np.arange(len(order)) - first_Q[query_C[order]]
        order = order[place < self.k]
        self.query_C = query_C[order]
        self.row_C = row_C[order]
        self.score_C = score_C[order]
        full_Q = np.flatnonzero(counts_Q >= self.k)
        last_Q = np.cumsum(np.minimum(counts_Q, self.k)) - 1
        self.floor_Q[torch.from_numpy(full_Q)] = torch.from_numpy(self.score_C[last_Q[full_Q]])
        self.parts = []
        self.waiting = 0


def top_k(
    query_QD: np.ndarray, corpus: Blocks, k: int, *, device: str = "cpu"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best rows of the corpus (k >= 1) for each query: scores float32 and rows int64, both [Q, min(k, N)],
    best first. One block of the corpus is in memory at a time. Raises ModelError like `multiply`."""
    best = TopK(len(query_QD), k)
    for tile in multiply(query_QD, corpus, device):
        best.add(*tile)
    return best.find()
