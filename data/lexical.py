"""BM25, the baseline of every retrieval table, by the bm25s library (Lù, 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import bm25s
import numpy as np


def scores(corpus: Sequence[str], queries: Sequence[str], block: int = 256) -> Iterator[tuple[int, np.ndarray]]:
    """(first query's row, [block, N] float32 BM25 scores of all documents) for blocks of queries.

    Lucene's BM25 with k1 = 1.5, b = 0.75, lower case, no stop words (short technical texts live of them), no stemming.
    """
    tokens = bm25s.tokenize(list(corpus), stopwords=None, show_progress=False)
    index = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    index.index(tokens, show_progress=False)
    split = bm25s.tokenize(list(queries), stopwords=None, show_progress=False, return_ids=False)
    for start in range(0, len(queries), block):
        rows = [index.get_scores(words) if words else np.zeros(len(corpus)) for words in split[start : start + block]]
        yield start, np.stack(rows).astype(np.float32)
