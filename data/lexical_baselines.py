"""The lexical baseline: BM25 by the bm25s library (Lù, 2024).

Words are lower-cased, of two or more letters, marks or digits, and not stemmed. Stop words are kept, since they carry
meaning in short technical texts. Scripts without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese,
Tibetan) are split into pairs of neighbouring characters, as Lucene's CJKAnalyzer does."""

import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from ratchet.errors import DataError
from ratchet.extras import hide_package

with hide_package("jax"):  # which bm25s would start, and JAX takes 75 % of a GPU's memory
    import bm25s

MARKS = "".join(
    chr(n) for n in range(0x300, 0x10000) if unicodedata.category(chr(n)) in ("Mn", "Mc")
)
"""Marks that belong to words, such as the vowel signs of Hindi. Python's `\\w` leaves them out."""
WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)


def _split_characters(found: re.Match[str]) -> str:
    """Return the pairs of neighbouring characters of a run; one character is doubled, since words have two or more."""
    run = found[0]
    pairs = [run * 2]
    if len(run) > 1:
        pairs = [one + other for one, other in itertools.pairwise(run)]
    return f" {' '.join(pairs)} "


def _tokenize(texts: Sequence[str], **options: Any) -> Any:
    split = [WITHOUT_SPACES.sub(_split_characters, text) for text in texts]
    pattern = rf"[\w{MARKS}]{{2,}}"
    return bm25s.tokenize(
        split, token_pattern=pattern, stopwords=None, show_progress=False, **options
    )


class BM25:
    """Lucene's BM25 over N documents, with k1 = 1.5 and b = 0.75. Raises DataError for a corpus without a word."""

    def __init__(self, corpus: Sequence[str]) -> None:
        tokens = _tokenize(corpus)
        if not any(tokens.ids):
            raise DataError(
                "BM25: no document has a word of two or more letters or digits; expected some; leave BM25 out"
            )
        self.index = bm25s.BM25(k1=1.5, b=0.75, method="lucene")
        self.documents = len(corpus)
        self.index.index(tokens, show_progress=False)

    def score(self, queries: Sequence[str]) -> np.ndarray:
        """Return the scores of each query, which are 0 for one without a known word: float32 [Q, N]."""
        scores_QN = np.zeros((len(queries), self.documents), np.float32)
        for words, score_N in zip(_tokenize(queries, return_ids=False), scores_QN, strict=True):
            if words:
                score_N[:] = self.index.get_scores(words)
        return scores_QN
