"""Baselines by words: BM25 by the bm25s library (Lù, 2024), and the Jaccard similarity of the sets of words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import bm25s
import numpy as np
from scipy.sparse import csr_matrix


def jaccard(corpus: Sequence[str], queries: Sequence[str], block: int = 256) -> Iterator[tuple[int, np.ndarray]]:
    """(first query's row, [block, N] float32): words in both / words in either; 0 where neither has any. Words as for
    BM25."""
    tokens = bm25s.tokenize([*corpus, *queries], stopwords=None, show_progress=False)
    sets = [np.unique(np.asarray(ids, np.int64)) for ids in tokens.ids]
    ends = np.cumsum([0, *map(len, sets)])
    shape = (len(sets), len(tokens.vocab))
    words = csr_matrix((np.ones(ends[-1], np.float32), np.concatenate([*sets, np.zeros(0, np.int64)]), ends), shape)
    sizes = np.diff(ends).astype(np.float32)
    documents, of_documents = words[: len(corpus)].T.tocsr(), sizes[: len(corpus)]
    for start in range(0, len(queries), block):
        rows = slice(len(corpus) + start, min(len(sets), len(corpus) + start + block))
        both = (words[rows] @ documents).toarray()
        either = sizes[rows, None] + of_documents - both
        yield start, np.divide(both, either, out=np.zeros_like(both), where=either > 0)


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
