"""The pool that held-out queries are ranked against during training."""

from __future__ import annotations

import pyarrow as pa
import pytest

from ratchet.data.evaluation_pool import choose_pool

CORPUS = pa.table({"id": [f"d{i}" for i in range(100)]})
VALID = pa.table({"id": ["a", "b"], "positives": [["d90"], ["d3", "d90"]]})
RANKED = pa.table({"id": ["a", "b"], "documents": [["d90", "d7", "d5", "d8"], ["d7", "d6", "d3"]]})


def test_order_of_the_pool() -> None:
    pool = choose_pool(VALID, CORPUS, RANKED, 8, seed=0)
    assert pool is not None
    assert pool.tolist() == sorted(set(pool.tolist()))
    assert len(pool) == 8
    # Half of the six that are left, each document once: d7, the first of b; d6, the second of b; d5, the third of a.
    assert {3, 90, 7, 6, 5} <= set(pool.tolist())
    again = choose_pool(VALID, CORPUS, RANKED, 8, seed=0)
    other = choose_pool(VALID, CORPUS, RANKED, 8, seed=1)
    assert again is not None
    assert other is not None
    assert pool.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 50, 99])
@pytest.mark.parametrize("ranked", [RANKED, None])
def test_sizes(size: int, ranked: pa.Table | None) -> None:
    pool = choose_pool(VALID, CORPUS, ranked, size, seed=0)
    assert pool is not None
    assert len(pool) == max(size, 2), "positives are always in it"
    assert {3, 90} <= set(pool.tolist())


@pytest.mark.parametrize("size", [None, 100, 101])
def test_a_small_corpus_is_ranked_as_a_whole(size: int | None) -> None:
    assert choose_pool(VALID, CORPUS, RANKED, size, seed=0) is None
