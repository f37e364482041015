"""Search against a sort of every exact score: ties, near ties, shards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.errors import ModelError
from ratchet.models.search import exact_scores, top_k


def brute(query: np.ndarray, corpus: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All scores one by one in float64, rounded to float32; a stable sort keeps the lower row first."""
    scores = np.array(
        [[np.float32(np.dot(q.astype(np.float64), c.astype(np.float64))) for c in corpus] for q in query]
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


@pytest.mark.slow
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 60),
    k=st.integers(1, 70),
    dim=st.sampled_from([1, 3, 33]),
    query_rows=st.integers(1, 9),
    block_rows=st.integers(1, 70),
)
@settings(max_examples=150, deadline=None)
def test_the_order_is_exact(seed: int, rows: int, k: int, dim: int, query_rows: int, block_rows: int) -> None:
    query, corpus = hard_case(seed, 7, rows, dim)
    expected_scores, expected_rows = brute(query, corpus, k)
    scores, found = top_k.top_k(query, corpus, k, query_rows=query_rows, block_rows=block_rows)
    assert found.dtype == np.int64
    assert scores.dtype == np.float32
    np.testing.assert_array_equal(found, expected_rows)
    np.testing.assert_allclose(scores, expected_scores, atol=0.0)
    assert np.all(np.diff(scores, axis=1) <= 0)


@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1, 2, 1000]))
@settings(max_examples=60, deadline=None)
def test_whole_numbers_tie_often(seed: int, scale: int) -> None:
    rng = np.random.default_rng(seed)
    query = (rng.integers(-1, 2, (5, 4)) * scale).astype(np.float32)
    corpus = (rng.integers(-1, 2, (50, 4)) * scale).astype(np.float32)
    scores, rows = top_k.top_k(query, corpus, 13, block_rows=11)
    expected = brute(query, corpus, 13)
    np.testing.assert_array_equal(rows, expected[1])
    np.testing.assert_array_equal(scores, expected[0])


@pytest.mark.parametrize("order", ["rising", "falling", "random"])
def test_many_blocks_and_larger_pools(order: str) -> None:
    """Enough rows for the sampled threshold, for appended pools and for cutting them; also the worst arrival order."""
    rng = np.random.default_rng(1)
    query = rng.standard_normal((40, 16)).astype(np.float32)
    corpus = rng.standard_normal((6000, 16)).astype(np.float32)
    if order != "random":
        by_score = np.argsort(corpus @ query[0])
        corpus = corpus[by_score if order == "rising" else by_score[::-1]]
    exact = (query.astype(np.float64) @ corpus.astype(np.float64).T).astype(np.float32)
    expected = np.argsort(-exact, axis=1, kind="stable")[:, :150]
    blocks = [(start, corpus[start : start + 700]) for start in range(0, 6000, 700)]
    _, rows = top_k.top_k(query, blocks, 150, query_rows=16, block_rows=300)
    np.testing.assert_array_equal(rows, expected)
    _, shuffled = top_k.top_k(query, iter(blocks[::-1]), 150)
    np.testing.assert_array_equal(shuffled, expected)


def test_a_corpus_of_copies_gives_the_first_rows() -> None:
    copy = np.random.default_rng(0).standard_normal(24).astype(np.float32)
    corpus = np.tile(copy, (5000, 1))
    scores, rows = top_k.top_k(np.stack([copy, -copy]), corpus, 20, block_rows=512)
    np.testing.assert_array_equal(rows, np.tile(np.arange(20), (2, 1)))
    assert len(np.unique(scores)) == 2


def test_shards_merge_to_the_whole() -> None:
    query, corpus = hard_case(5, 12, 300, 20)
    whole = top_k.top_k(query, corpus, 30)
    parts = [
        top_k.top_k(query, [(start, corpus[start:stop])], 30) for start, stop in ((0, 110), (110, 120), (120, 300))
    ]
    merged = top_k.merge_top_k(parts, 30)
    np.testing.assert_array_equal(merged[1], whole[1])
    np.testing.assert_array_equal(merged[0], whole[0])


def test_a_pair_scores_the_same_in_any_company() -> None:
    rng = np.random.default_rng(2)
    query = torch.from_numpy(rng.standard_normal((50, 384)).astype(np.float32))
    corpus = torch.from_numpy(rng.standard_normal((80, 384)).astype(np.float32))
    q, c = rng.integers(0, 50, 3000), rng.integers(0, 80, 3000)
    together = exact_scores.compute_exact_scores(query, q, corpus, c)
    alone = [exact_scores.compute_exact_scores(query, q[i : i + 1], corpus, c[i : i + 1])[0] for i in range(3000)]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("dim", [8, 100, 256, 384, 390, 3584])
def test_the_multiplication_stays_within_its_bound(dim: int) -> None:
    """The bound decides which places are checked. Equal components round alike: the worst case."""
    rng = np.random.default_rng(dim)
    random = torch.from_numpy(rng.standard_normal((64, dim))).float()
    equal = torch.from_numpy(np.linspace(0.5, 1.5, 64)[:, None] * np.ones((1, dim))).float()
    corpus = torch.nn.functional.normalize(torch.cat([random, random + 0.5, equal]), dim=1)
    exact = corpus.double() @ corpus.double().T
    assert ((corpus @ corpus.T).double() - exact).abs().max() < exact_scores.bound_rounding(dim)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_keys_sort_as_scores_and_give_them_back(values: list[float]) -> None:
    scores = np.array(values, np.float32)
    keys = top_k.encode_keys(scores, np.arange(len(scores)))
    np.testing.assert_array_equal(top_k.decode_scores(keys), scores)
    np.testing.assert_array_equal(np.argsort(keys), np.argsort(-scores, kind="stable"))


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    top_k.top_k(np.ones((1, 2), np.float32), np.ones((3, 2), np.float32), 1)
    assert torch.get_num_threads() == before


def test_empty_sides() -> None:
    scores, rows = top_k.top_k(np.empty((0, 3), np.float32), np.ones((4, 3), np.float32), 2)
    assert scores.shape == rows.shape == (0, 2)
    scores, rows = top_k.top_k(np.ones((2, 3), np.float32), np.empty((0, 3), np.float32), 2)
    assert scores.shape == rows.shape == (2, 0)


ONES = np.ones((4, 3), np.float32)


@pytest.mark.parametrize(
    ("query", "corpus", "sentence"),
    [
        (ONES * np.nan, ONES, "query_QD: row 0 .4 rows"),
        (ONES, np.where(np.eye(4, 3) > 0, np.inf, ONES).astype(np.float32), "NaN, infinity"),
        (ONES, np.ones((4, 2), np.float32), "2 dimensions; expected the queries' 3"),
        (ONES * 1e18, ONES * 2e18, r"beyond 3e\+18"),
    ],
)
def test_refusals_say_what_to_do(query: np.ndarray, corpus: np.ndarray, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        top_k.top_k(query, corpus, 1)
