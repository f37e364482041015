"""Groups of texts by length, against all possible groupings."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.models.batching import find_overhead, group_by_length

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def cost(groups: list[np.ndarray], padded: np.ndarray, overhead: int) -> int:
    return sum(len(group) * int(padded[group].max()) + overhead for group in groups)


@pytest.mark.slow
@settings(deadline=None)
@given(LENGTHS, st.integers(1, 300), st.sampled_from([1, 4, 8]))
def test_each_row_once_and_within_the_budget(
    lengths: list[int], tokens: int, multiple: int
) -> None:
    groups = group_by_length(lengths, tokens, multiple)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    for group in groups:
        longest = -(-max(1, *(lengths[i] for i in group), 1) // multiple) * multiple
        assert len(group) == 1 or len(group) * longest <= tokens


@settings(deadline=None)
@given(LENGTHS, st.sampled_from([0, 16, 64, 500]))
def test_no_other_cut_costs_less(lengths: list[int], overhead: int) -> None:
    padded = (np.maximum(lengths, 1) + 7) // 8 * 8
    values = np.unique(padded)
    best = min(
        cost(
            [np.flatnonzero((padded >= low) & (padded < high)) for low, high in pairwise(edges)],
            padded,
            overhead,
        )
        for count in range(len(values))
        for cut in combinations(values[1:], count)
        for edges in [[0, *cut, 1000]]
    )
    assert cost(group_by_length(lengths, 10_000, 8, overhead), padded, overhead) == best


def test_a_small_model_makes_few_passes_on_a_gpu() -> None:
    lengths = np.random.default_rng(0).integers(8, 70, 400).tolist()

    def count(device: str, hidden_size: int) -> int:
        return len(group_by_length(lengths, 16_384, 8, find_overhead(device, hidden_size)))

    assert (
        count("cuda", 384)
        < count("cuda", 1024)
        < count("cuda", 8192)
        == count("cpu", 8192)
        == count("cpu", 384)
    )
