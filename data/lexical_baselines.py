"""Lexical baselines: BM25 by the bm25s library (Lù, 2024), and the Jaccard similarity of word sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.sparse import csr_matrix

from ratchet.errors import DataError
from ratchet.extras import hide_package

with hide_package("jax"):  # which bm25s would start, and JAX takes 75 % of a GPU's memory
    import bm25s


def score_jaccard(corpus: Sequence[str], queries: Sequence[str], block: int = 256) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (row of the first query, [block, N] float32 Jaccard similarities to all documents) for blocks of queries.

    The similarity is |A ∩ B| / |A ∪ B| of the word sets, and 0 if both are empty. Words are tokenized as for BM25.
    """
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


def score_bm25(corpus: Sequence[str], queries: Sequence[str], block: int = 256) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (row of the first query, [block, N] float32 BM25 scores of all documents) for blocks of queries."""
    index = index_bm25(corpus)
    for start in range(0, len(queries), block):
        yield start, np.stack([score_words(index, query) for query in queries[start : start + block]])


def index_bm25(corpus: Sequence[str]) -> bm25s.BM25:
    """Return an index of documents: Lucene's BM25 with k1 = 1.5 and b = 0.75, lower-cased, without stemming. Stop words
    are kept, since they carry meaning in short technical texts. Raises DataError for a corpus without a word."""
    tokens = bm25s.tokenize(list(corpus), stopwords=None, show_progress=False)
    if not any(tokens.ids):
        raise DataError(
            "BM25: no document has a word of two or more letters or digits; expected some; use another system"
        )
    index = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
    index.index(tokens, show_progress=False)
    return index


def score_words(index: bm25s.BM25, query: str) -> np.ndarray:
    """Return [N] float32 BM25 scores of all documents, which are 0 for a query without a known word."""
    (words,) = bm25s.tokenize([query], stopwords=None, show_progress=False, return_ids=False)
    scores = index.get_scores(words) if words else np.zeros(index.scores["num_docs"])
    return scores.astype(np.float32)
