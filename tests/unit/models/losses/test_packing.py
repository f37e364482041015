"""Packing of conversations into rows, against a simple search through all rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ratchet.models.losses.causal_lm_loss import pack_rows


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 60))
def test_packing_keeps_all_and_stays_within(lengths: list[int], most: int) -> None:
    rows = pack_rows(lengths, most)
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    for row in rows:
        assert len(row) == 1 or sum(lengths[i] for i in row) <= most
    # No two rows could be one.
    sizes = sorted(sum(lengths[i] for i in row) for row in rows)
    assert len(sizes) < 2 or sizes[0] + sizes[1] > most
    assert rows == pack_by_search(lengths, most)


def pack_by_search(lengths: list[int], most: int) -> list[list[int]]:
    """Best fit decreasing, by looking at all rows."""
    rows: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        room = [most - sum(lengths[i] for i in row) for row in rows]
        fits = [row for row, left in enumerate(room) if left >= lengths[number]]
        if not fits:
            rows.append([])
        rows[min(fits, key=lambda row: room[row]) if fits else -1].append(number)
    return rows


def test_packing_of_many_rows_takes_no_longer_for_each() -> None:
    lengths = np.random.default_rng(0).integers(1100, 2000, 100_000).tolist()
    assert len(pack_rows(lengths, 2048)) == 100_000  # minutes, if all rows were looked at
