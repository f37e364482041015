"""Length grouping for training batches: minimises the cost of padding plus forward passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

OVERHEAD_TOKENS = 64
"""Fixed cost of a forward and backward pass, in tokens of padding."""


def group_by_length(lengths: Sequence[int], tokens: int, multiple: int) -> list[np.ndarray]:
    """Return the row indices of each forward pass with the least total cost, by dynamic programming over the lengths.

    A pass holds at most `tokens` padded tokens, or one row. Lengths are rounded up to `multiple`.
    """
    padded = (np.maximum(lengths, 1) + multiple - 1) // multiple * multiple
    values, counts = np.unique(padded, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)])
    cost, cut = [0.0], [0]
    for stop in range(1, len(values) + 1):
        rows = before[stop] - before[:stop]
        passes = -(-rows // max(1, tokens // values[stop - 1]))
        every = np.array(cost) + rows * values[stop - 1] + OVERHEAD_TOKENS * passes
        cut.append(int(every.argmin()))
        cost.append(float(every.min()))
    order, groups, stop = np.argsort(padded, kind="stable"), [], len(values)
    while stop > 0:
        rows = order[before[cut[stop]] : before[stop]]
        groups += np.array_split(rows, -(-len(rows) // max(1, tokens // int(values[stop - 1]))))
        stop = cut[stop]
    return groups
