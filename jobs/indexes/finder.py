"""Search in an index, or in a table of a database."""

from pathlib import Path
from typing import Protocol

import faiss
import numpy as np
import pyarrow.parquet as pq

from ratchet.data.vector_tables import Found, open_table
from ratchet.jobs.indexes.build_index import DOCUMENTS, INDEX
from ratchet.models.embedder import encoder


class Searchable(Protocol):
    def find(self, query_D: np.ndarray, k: int) -> list[Found]:
        """Return the k nearest documents, the best first."""


class Index:
    """An index of FAISS with its documents."""

    def __init__(self, folder: Path) -> None:
        """folder: output of `build_index`."""
        self.index = faiss.read_index(str(folder / INDEX))
        documents = pq.read_table(folder / DOCUMENTS)
        self.ids = documents["id"].to_pylist()
        self.texts = documents["text"]

    def find(self, query_D: np.ndarray, k: int) -> list[Found]:
        scores, rows = self.index.search(query_D[None], min(len(self.ids), k))
        found = []
        for row, score in zip(rows[0].tolist(), scores[0].tolist(), strict=True):
            if row >= 0:
                found.append(Found(self.ids[row], self.texts[row].as_py(), score))
        return found


class Finder:
    """An index or a table with its embedder."""

    def __init__(self, model: Path, searchable: Searchable) -> None:
        # For one query at a time bfloat16 is no faster, and it would reorder documents with close scores.
        self.encoder = encoder.load(model, dtype="float32", device="cpu")
        self.searchable = searchable

    def find(self, query: str, k: int = 10) -> list[Found]:
        """Return the k best documents for a query, the best first."""
        return self.searchable.find(self.encoder.encode([query], "query")[0], k)


def load_finder(model: Path, folder: Path | None, address: str) -> Finder:
    """folder: output of `build_index`. None: search in the table `address`."""
    if folder is None:
        return Finder(model, open_table("documents", address))
    return Finder(model, Index(folder))
