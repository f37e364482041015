"""Approximate search against a sort of all scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from faiss.contrib.inspect_tools import get_invlist

from ratchet.models.search import inverted_lists
from ratchet.models.search.inverted_lists import build_lists, choose_probes, count_lists, search_lists
from ratchet.models.search.top_k import top_k

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
    """An index of 55 lists that was built of five blocks, written, and read again."""
    built = build_lists(tmp_path / "vectors", CORPUS[::2], lambda: np.array_split(CORPUS, 5), count_lists(ROWS), seed=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vectors"]
    faiss.write_index(built, str(tmp_path / "index"))
    del built
    return faiss.read_index(str(tmp_path / "index"))


def test_the_lists_are_those_that_faiss_builds_in_memory(index: Any, tmp_path: Path) -> None:
    expected: Any = faiss.index_factory(16, f"IVF{index.nlist},Flat", faiss.METRIC_INNER_PRODUCT)
    expected.cp.seed = 0
    expected.train(CORPUS[::2])
    expected.add(CORPUS)
    for number in range(index.nlist):
        for ours, theirs in zip(*(get_invlist(one.invlists, number) for one in (index, expected)), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert (tmp_path / "vectors").stat().st_size == ROWS * (4 * 16 + 8)


def test_a_list_may_be_empty(tmp_path: Path) -> None:
    """Two distinct vectors, and three lists of their own or none."""
    corpus_ND = np.repeat(np.eye(2, dtype=np.float32), [3, 5], axis=0)
    index = build_lists(tmp_path / "vectors", corpus_ND, lambda: [corpus_ND[:4], corpus_ND[4:]], 3, seed=0)
    assert min(index.invlists.list_size(number) for number in range(3)) == 0
    index.nprobe = 3
    scores_QK, rows_QK = search_lists(index, np.eye(2, dtype=np.float32), 8)
    np.testing.assert_array_equal(rows_QK, [range(8), [3, 4, 5, 6, 7, 0, 1, 2]])
    np.testing.assert_array_equal(scores_QK, np.sort(scores_QK)[:, ::-1])


def rank_all() -> np.ndarray:
    rows: np.ndarray = np.argsort(-(QUERY.astype(np.float64) @ CORPUS.T.astype(np.float64)), axis=1, kind="stable")
    return rows


def test_all_lists_hold_the_nearest_in_order(index: Any) -> None:
    assert (index.ntotal, index.nlist) == (ROWS, 55)
    index.nprobe = index.nlist
    scores_QK, rows_QK = search_lists(index, QUERY, K)
    np.testing.assert_array_equal(rows_QK, rank_all()[:, :K])
    np.testing.assert_allclose(scores_QK, np.take_along_axis(QUERY @ CORPUS.T, rows_QK, 1), atol=1e-6)


@pytest.mark.parametrize("least", [0.3, 0.8, 0.97, 1.0])
def test_the_fewest_lists_that_reach_the_recall_are_searched(index: Any, least: float) -> None:
    exact = rank_all()[:, :K]
    found, expected = choose_probes(index, QUERY, CORPUS[exact], least)

    def measure(part: slice) -> tuple[int, int]:
        rows_QK = index.search(QUERY[part], K)[1]
        return sum(len(set(own) & set(right)) for own, right in zip(rows_QK, exact[part], strict=True)), rows_QK.size

    assert (found, expected) == measure(slice(1, None, 2)), "of the queries that did not choose"
    hits, every = measure(slice(0, None, 2))
    assert hits >= least * every
    if index.nprobe > 1:
        index.nprobe -= 1
        hits, every = measure(slice(0, None, 2))
        assert hits < least * every


@pytest.mark.parametrize(("probes", "rows_at_once"), [(1, 4096), (3, 4096), (20, 4096), (20, 7)])
def test_what_is_found_is_what_faiss_finds(
    index: Any, probes: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inverted_lists, "ROWS_AT_ONCE", rows_at_once)
    index.nprobe = probes
    scores_QK, rows_QK = search_lists(index, QUERY, K)
    expected_QK, expected_rows_QK = index.search(QUERY, K)
    np.testing.assert_array_equal(rows_QK, expected_rows_QK)
    np.testing.assert_allclose(scores_QK, expected_QK, atol=1e-6)


def test_a_query_whose_lists_hold_too_few_is_compared_with_all(index: Any) -> None:
    index.nprobe = 1
    scores_QK, rows_QK = search_lists(index, QUERY, 500)
    assert all(len(set(own)) == 500 for own in rows_QK)
    best_QK = -np.sort(-(QUERY @ CORPUS.T), axis=1)[:, :500]
    np.testing.assert_allclose(scores_QK, best_QK, atol=1e-6)  # not the rows: some scores differ by less than rounding
    assert search_lists(index, QUERY, 5000)[1].shape == (QUERIES, ROWS)


def test_one_list_may_hold_more_than_there_is_room_for(tmp_path: Path) -> None:
    """All documents but a few are in one list, and rise in score for a query: each block of them is a candidate."""
    many_ND = np.tile(CORPUS[:1], (900, 1)) * np.linspace(0.1, 1, 900, dtype=np.float32)[:, None]
    corpus_ND = np.concatenate([many_ND, CORPUS[:40]])
    index = build_lists(tmp_path / "vectors", corpus_ND, lambda: [corpus_ND], 4, seed=0)
    index.nprobe = 4
    scores_QK, rows_QK = search_lists(index, CORPUS[:3], 5)
    expected_scores_QK, expected_QK = top_k(CORPUS[:3], corpus_ND, 5)
    np.testing.assert_allclose(scores_QK, expected_scores_QK, atol=1e-6)
    assert (rows_QK == expected_QK).mean() > 0.9, "equal scores but for rounding may change places"


def test_equal_scores_are_in_the_order_of_their_rows(tmp_path: Path) -> None:
    same_ND = np.tile(CORPUS[:1], (10, 1))
    index = build_lists(tmp_path / "vectors", same_ND, lambda: [same_ND], 1, seed=0)
    assert search_lists(index, same_ND[:2], 4)[1].tolist() == [[0, 1, 2, 3]] * 2
