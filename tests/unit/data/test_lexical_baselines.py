"""BM25 and Jaccard similarity on texts that have little to compare."""

from __future__ import annotations

import numpy as np
import pytest

from ratchet.data.lexical_baselines import score_bm25, score_jaccard
from ratchet.errors import DataError


def test_a_query_or_a_document_without_words_scores_nothing() -> None:
    corpus, queries = ["two words", "", "other words"], ["words", "a", ""]
    for score in (score_bm25, score_jaccard):
        score_QN = np.concatenate([block for _, block in score(corpus, queries)])
        assert (score_QN > 0).tolist() == [[True, False, True], [False] * 3, [False] * 3]


def test_a_corpus_without_words_is_refused() -> None:
    with pytest.raises(DataError, match="BM25: no document has a word of two or more letters"):
        list(score_bm25(["a", ""], ["words"]))
