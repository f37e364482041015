"""Search against a sort of every exact score: ties, near ties, shards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import ModelError
from ratchet.models.search import top_k


def brute(query: np.ndarray, corpus: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All scores one by one in float64, rounded to float32; a stable sort keeps the lower row first."""
    scores = np.array(
        [
            [np.float32(np.dot(q.astype(np.float64), c.astype(np.float64))) for c in corpus]
            for q in query
        ]
    ).reshape(len(query), len(corpus))
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, rows, 1), rows


def hard_case(seed: int, queries: int, rows: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors with exact duplicates and with neighbours one float32 step away: what rounding gets wrong."""
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((max(1, rows // 3), dim)).astype(np.float32)
    base /= np.linalg.norm(base, axis=1, keepdims=True)
    corpus = base[rng.integers(0, len(base), rows)]
    nudged = rng.random(rows) < 0.5
    at = rng.integers(0, dim, rows)
    corpus[nudged, at[nudged]] = np.nextafter(corpus[nudged, at[nudged]], np.float32(2))
    query = rng.standard_normal((queries, dim)).astype(np.float32)
    return query / np.linalg.norm(query, axis=1, keepdims=True), corpus


def split(corpus: np.ndarray, rows: int) -> list[tuple[int, np.ndarray]]:
    return [(start, corpus[start : start + rows]) for start in range(0, len(corpus), rows)]


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 60),
    k=st.integers(1, 70),
    dim=st.sampled_from([1, 3, 33]),
    block_rows=st.integers(1, 70),
)
@settings(max_examples=150, deadline=None)
def test_the_order_is_exact(seed: int, rows: int, k: int, dim: int, block_rows: int) -> None:
    query, corpus = hard_case(seed, 7, rows, dim)
    expected_scores, expected_rows = brute(query, corpus, k)
    scores, found = top_k.top_k(query, split(corpus, block_rows), k)
    assert found.dtype == np.int64
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(found, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, atol=0.0)
    assert np.all(np.diff(scores, axis=1) <= 0)


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1, 2, 1000]))
@settings(max_examples=60, deadline=None)
def test_whole_numbers_tie_often(seed: int, scale: int) -> None:
    rng = np.random.default_rng(seed)
    query = (rng.integers(-1, 2, (5, 4)) * scale).astype(np.float32)
    corpus = (rng.integers(-1, 2, (50, 4)) * scale).astype(np.float32)
    scores, rows = top_k.top_k(query, split(corpus, 11), 13)
    expected = brute(query, corpus, 13)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(scores, expected[0])


@pytest.mark.parametrize("order", ["rising", "falling", "random"])
def test_many_blocks_and_larger_pools(order: str) -> None:
    """Enough rows for several tiles, and for cutting the candidates; also the worst arrival order."""
    rng = np.random.default_rng(1)
    query = rng.standard_normal((40, 16)).astype(np.float32)
    corpus = rng.standard_normal((6000, 16)).astype(np.float32)
    if order != "random":
        by_score = np.argsort(corpus @ query[0])
        corpus = corpus[by_score if order == "rising" else by_score[::-1]]
    exact = (query.astype(np.float64) @ corpus.astype(np.float64).T).astype(np.float32)
    expected = np.argsort(-exact, axis=1, kind="stable")[:, :150]
    _, rows = top_k.top_k(query, split(corpus, 6000), 150)
    np.testing.assert_array_equal(rows, expected)
    _, shuffled = top_k.top_k(query, iter(split(corpus, 700)[::-1]), 150)
    np.testing.assert_array_equal(shuffled, expected)


def test_a_corpus_of_copies_gives_the_first_rows() -> None:
    copy = np.random.default_rng(0).standard_normal(24).astype(np.float32)
    corpus = np.tile(copy, (5000, 1))
    scores, rows = top_k.top_k(np.stack([copy, -copy]), split(corpus, 512), 20)
    np.testing.assert_array_equal(rows, np.tile(np.arange(20), (2, 1)))
    assert len(np.unique(scores)) == 2


def test_empty_sides() -> None:
    scores, rows = top_k.top_k(np.empty((0, 3), np.float32), [(0, np.ones((4, 3), np.float32))], 2)
    assert len(scores) == len(rows) == 0
    scores, rows = top_k.top_k(np.ones((2, 3), np.float32), [(0, np.empty((0, 3), np.float32))], 2)
    assert scores.shape == rows.shape == (2, 0)


ONES = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("query", "corpus", "sentence"),
    [
        (ONES * np.nan, ONES, "queries: row 0 .4 rows"),
        (ONES, np.where(np.eye(4, 3) > 0, np.inf, ONES).astype(np.float32), "NaN or infinity"),
        (ONES, np.ones((4, 2), np.float32), "2 dimensions; expected the queries' 3"),
    ],
)
def test_refusals_say_what_to_do(query: np.ndarray, corpus: np.ndarray, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        top_k.top_k(query, [(0, corpus)], 1)
