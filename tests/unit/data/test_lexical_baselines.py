"""BM25 on texts without words, or without common words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import bm25s
import pytest

from ratchet.data.lexical_baselines import BM25, _tokenize
from ratchet.errors import DataError


def test_a_query_or_a_document_without_words_scores_nothing() -> None:
    corpus, queries = ["two words", "", "other words"], ["words", "a", ""]
    assert (BM25(corpus).score(queries) > 0).tolist() == [
        [True, False, True],
        [False] * 3,
        [False] * 3,
    ]


def test_a_corpus_without_words_is_refused() -> None:
    with pytest.raises(DataError, match="BM25: no document has a word of two or more letters"):
        BM25(["a", ""])


@pytest.mark.slow
def test_jax_is_not_started(tmp_path: Path) -> None:
    """It takes most of a GPU's memory when it starts, and bm25s starts it where it is installed."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("")
    (tmp_path / "jax/lax.py").write_text("def top_k(*given): raise SystemExit('started')")
    environment = {"PYTHONPATH": str(tmp_path)}
    for code, started in (
        ("import bm25s", True),
        ("import ratchet.data.lexical_baselines, jax", False),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert done.stderr.strip() == ("started" if started else "")


@pytest.mark.parametrize(
    ("query", "answer", "other"),
    [
        ("苹果的颜色是什么", "苹果通常是红色的", "狗在公园里跑步"),
        ("りんごの色は何ですか", "りんごは赤いです", "犬が公園を走ります"),
        ("แอปเปิลสีอะไร", "แอปเปิลมีสีแดง", "สุนัขวิ่งในสวน"),
        ("सेब का रंग क्या है", "सेब लाल होता है", "कुत्ता पार्क में दौड़ता"),
        ("사과는 무슨 색", "사과는 빨간 색", "개가 공원에서 달린다"),
        ("猫", "猫", "犬"),
        ("Häuser am Fluß", "häuser stehen am ufer", "ein hund"),
        ("Ha\u0308user", "ha\u0308user stehen", "hunde laufen"),
    ],
)
def test_words_of_any_script_are_found(query: str, answer: str, other: str) -> None:
    scores = BM25([answer, other]).score([query])[0]
    assert scores[0] > 0
    assert scores[0] > scores[1]


def test_words_of_plain_text_are_those_of_bm25s() -> None:
    texts = ["The cat's 2 eyes, 3.14 and naïve_café x", "A-B c42 of it"]
    found = _tokenize(texts, return_ids=False)
    assert found == bm25s.tokenize(texts, stopwords=None, show_progress=False, return_ids=False)
