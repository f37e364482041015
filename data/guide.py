"""A guide: vectors of another embedder, which tell the passages of a batch that are probably unlabelled positives.

Solatorio 2024, "GISTEmbed: guided in-sample selection of training negatives for text embedding fine-tuning".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from ratchet.data.triplets import TripletBatch, Triplets
from ratchet.data.vectors import read_selected
from ratchet.errors import DataError


class Guide:
    """Vectors of the training queries and of the passages that they train on, in float16: 2 bytes per dimension of each
    text.

    queries, passages: folders with embeddings of these texts, as `embed` writes them. Raises DataError for a text
    without an embedding, and if the dimensions of queries and passages differ."""

    def __init__(self, triplets: Triplets, corpus: pa.Table, queries: Path, passages: Path) -> None:
        self._rows = triplets.list_passages()
        self._query_QD = _normalize(read_selected(queries, triplets.queries["id"]))
        self._passage_PD = _normalize(read_selected(passages, corpus["id"].take(self._rows)))
        sizes = []
        for vectors in (self._query_QD, self._passage_PD):
            sizes.append(vectors.shape[1])
        if sizes[0] != sizes[1]:
            raise DataError(
                f"{queries}: vectors of {sizes[0]} dimensions, and {passages}: of {sizes[1]}; expected those of one"
                " guide; embed both with the same model"
            )

    def find_suspects(self, batch: TripletBatch, margin: float) -> np.ndarray:
        """Return the mask bool [Q, P] of a batch: True where the cosine similarity of a passage and the query is above
        that of the positive and the query, minus the margin. The positive itself is never masked."""
        query_QD = self._query_QD[batch.query_Q].astype(np.float32)
        passage_PD = self._passage_PD[np.searchsorted(self._rows, batch.passage_P)].astype(np.float32)
        score_QP = query_QD @ passage_PD.T
        positive_Q = np.array([own[0] for own in batch.own_Q])
        every_Q = np.arange(len(positive_Q))
        mask_QP: np.ndarray = score_QP > score_QP[every_Q, positive_Q][:, None] - margin
        mask_QP[every_Q, positive_Q] = False
        return mask_QP


def _normalize(vectors: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0, casting="same_kind")
