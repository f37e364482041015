"""Token-budget batches: little padding, bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

MULTIPLE = 8
"""Padded lengths are multiples of this, for faster kernels and fewer distinct shapes."""


def batch_by_tokens(
    lengths: Sequence[int] | np.ndarray, batch_tokens: int, multiple: int = MULTIPLE
) -> list[np.ndarray]:
    """Return the row indices of each batch, longest rows first, so that a batch that does not fit in memory fails at
    once. A batch holds at most `batch_tokens` padded tokens, or one row."""
    lengths = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    padded = (lengths + multiple - 1) // multiple * multiple
    order = np.argsort(-padded, kind="stable")
    batches, start = [], 0
    while start < len(order):
        rows = max(1, batch_tokens // int(padded[order[start]]))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def pad(
    rows: Sequence[Sequence[int]], pad_id: int, side: str = "right", multiple: int = MULTIPLE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad rows to the longest length, rounded up to `multiple`. Returns (input_ids_BL, attention_mask_BL), int64."""
    longest = max((len(row) for row in rows), default=1)
    length = (max(longest, 1) + multiple - 1) // multiple * multiple
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        where = slice(length - len(row), length) if side == "left" else slice(0, len(row))
        ids[number, where] = row
        mask[number, where] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)
