"""Search in an index."""

from pathlib import Path

import faiss
import pyarrow.parquet as pq

from ratchet.jobs.indexes.build_index import DOCUMENTS, INDEX
from ratchet.models.embedder import encoder

Found = tuple[str, str, float]
"""Id, text and score of a document."""


class Finder:
    """An index with its embedder."""

    def __init__(self, model: Path, folder: Path) -> None:
        """folder: output of `build_index`."""
        # For one query at a time bfloat16 is no faster, and it would reorder documents with close scores.
        self.encoder = encoder.load(model, dtype="float32", device="cpu")
        self.index = faiss.read_index(str(folder / INDEX))
        documents = pq.read_table(folder / DOCUMENTS)
        self.ids = documents["id"].to_pylist()
        self.texts = documents["text"]

    def find(self, query: str, k: int = 10) -> list[Found]:
        """Return the k best documents for a query, the best first."""
        query_1D = self.encoder.encode([query], "query")
        scores, rows = self.index.search(query_1D, min(len(self.ids), k))
        found = []
        for row, score in zip(rows[0].tolist(), scores[0].tolist(), strict=True):
            if row >= 0:
                found.append((self.ids[row], self.texts[row].as_py(), score))
        return found
