"""Groups by length against all ways of cutting."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.models.batching import OVERHEAD_TOKENS, group_by_length

LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def cost(groups: list[np.ndarray], padded: np.ndarray) -> int:
    return sum(len(group) * int(padded[group].max()) + OVERHEAD_TOKENS for group in groups)


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 300), st.sampled_from([1, 4, 8]))
def test_each_row_once_and_within_the_budget(lengths: list[int], tokens: int, multiple: int) -> None:
    groups = group_by_length(lengths, tokens, multiple)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    for group in groups:
        longest = -(-max(1, *(lengths[i] for i in group), 1) // multiple) * multiple
        assert len(group) == 1 or len(group) * longest <= tokens


@settings(deadline=None)
@given(LENGTHS)
def test_no_other_cut_costs_less(lengths: list[int]) -> None:
    padded = (np.maximum(lengths, 1) + 7) // 8 * 8
    values = np.unique(padded)
    best = min(
        cost(
            [np.flatnonzero((padded >= low) & (padded < high)) for low, high in pairwise(edges)],
            padded,
        )
        for count in range(len(values))
        for cut in combinations(values[1:], count)
        for edges in [[0, *cut, 1000]]
    )
    assert cost(group_by_length(lengths, 10_000, 8), padded) == best
