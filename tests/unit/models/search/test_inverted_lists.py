"""Approximate search against a sort of all scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from ratchet.models.search.inverted_lists import (
    build_lists,
    choose_probes,
    count_lists,
    search_lists,
)

ROWS, QUERIES, K = 3000, 101, 10


def draw_vectors(seed: int, rows: int) -> np.ndarray:
    """Unit vectors in clusters."""
    rng = np.random.default_rng(0)
    centre_CD = rng.standard_normal((40, 16))
    rng = np.random.default_rng(seed)
    vector_ND = centre_CD[rng.integers(0, 40, rows)] + 1.2 * rng.standard_normal((rows, 16))
    return (vector_ND / np.linalg.norm(vector_ND, axis=1, keepdims=True)).astype(np.float32)


CORPUS, QUERY = draw_vectors(1, ROWS), draw_vectors(2, QUERIES)


@pytest.fixture
def index(tmp_path: Path) -> Any:
    """An index of 55 lists that was built of five blocks, written, and mapped."""
    built = build_lists(CORPUS[::2], np.array_split(CORPUS, 5), count_lists(ROWS), seed=0)
    faiss.write_index(built, str(tmp_path / "index"))
    return faiss.read_index(str(tmp_path / "index"), faiss.IO_FLAG_MMAP)


def rank_all() -> np.ndarray:
    rows: np.ndarray = np.argsort(
        -(QUERY.astype(np.float64) @ CORPUS.T.astype(np.float64)), axis=1, kind="stable"
    )
    return rows


def test_all_lists_hold_the_nearest_in_order(index: Any) -> None:
    assert (index.ntotal, index.nlist) == (ROWS, 55)
    index.nprobe = index.nlist
    np.testing.assert_array_equal(search_lists(index, QUERY, K), rank_all()[:, :K])


@pytest.mark.parametrize("least", [0.3, 0.8, 0.97, 1.0])
def test_the_fewest_lists_that_reach_the_recall_are_searched(index: Any, least: float) -> None:
    exact = rank_all()[:, :K]
    found, expected = choose_probes(index, QUERY, CORPUS[exact], least)

    def measure(part: slice) -> tuple[int, int]:
        rows_QK = index.search(QUERY[part], K)[1]
        return sum(
            len(set(own) & set(right)) for own, right in zip(rows_QK, exact[part], strict=True)
        ), rows_QK.size

    assert (found, expected) == measure(slice(1, None, 2)), "of the queries that did not choose"
    hits, every = measure(slice(0, None, 2))
    assert hits >= least * every
    if index.nprobe > 1:
        index.nprobe -= 1
        hits, every = measure(slice(0, None, 2))
        assert hits < least * every


def test_a_query_whose_lists_hold_too_few_is_compared_with_all(index: Any) -> None:
    index.nprobe = 1
    rows_QK = search_lists(index, QUERY, 500)
    scores_QN = QUERY @ CORPUS.T
    best_QK = -np.sort(-scores_QN, axis=1)[:, :500]
    np.testing.assert_allclose(np.take_along_axis(scores_QN, rows_QK, 1), best_QK, atol=1e-6)
    assert search_lists(index, QUERY, 5000).shape == (QUERIES, ROWS)
