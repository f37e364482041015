"""Search in an index: by vectors, or hybrid with BM25."""

from pathlib import Path

import faiss
import numpy as np
import pyarrow.parquet as pq

from ratchet.data.fusion import fuse, score_ranks
from ratchet.data.lexical_baselines import BM25
from ratchet.jobs.indexes.build_index import DOCUMENTS, INDEX
from ratchet.models.embedder import encoder

CANDIDATES = 100
"""Number of documents of each ranking that are fused in a hybrid search."""

Found = tuple[str, str, float]
"""Id, text and score of a document."""


class Finder:
    """An index with its embedder."""

    def __init__(self, model: Path, folder: Path, hybrid: bool = False) -> None:
        """folder: output of `build_index`. hybrid: fuse with BM25 by reciprocal ranks (Cormack et al. 2009)."""
        # For one query at a time bfloat16 is no faster, and it would reorder documents with close scores.
        self.encoder = encoder.load(model, dtype="float32", device="cpu")
        self.index = faiss.read_index(str(folder / INDEX))
        documents = pq.read_table(folder / DOCUMENTS)
        self.ids = documents["id"].to_pylist()
        self.texts = documents["text"]
        self.words: BM25 | None = None
        if hybrid:
            self.words = BM25(self.texts.to_pylist())

    def find(self, query: str, k: int = 10) -> list[Found]:
        """Return the k best documents for a query, the best first."""
        depth = k
        if self.words is not None:
            depth = max(k, CANDIDATES)
        query_1D = self.encoder.encode([query], "query")
        scores, rows = self.index.search(query_1D, min(len(self.ids), depth))
        best = {}
        for row, score in zip(rows[0].tolist(), scores[0].tolist(), strict=True):
            if row >= 0:
                best[row] = score
        if self.words is not None:
            (score_N,) = self.words.score([query])
            order = np.argsort(-score_N, kind="stable")[:depth]
            by_words = order[score_N[order] > 0]
            points = [[score_ranks(list(map(str, best)))], [score_ranks(list(map(str, by_words)))]]
            best = {int(row): score for row, score in fuse(points, [1.0, 1.0])[0]}
        found = []
        for row, score in list(best.items())[:k]:
            found.append((self.ids[row], self.texts[row].as_py(), score))
        return found
