"""Batches by tokens instead of rows: little padding, bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

MULTIPLE = 8
"""Padded lengths are multiples of this: kernels like it, and fewer shapes are met."""


def token_batches(lengths: Sequence[int] | np.ndarray, batch_tokens: int, multiple: int = MULTIPLE) -> list[np.ndarray]:
    """Row indices per batch, longest rows first (what does not fit in memory fails at once, and the time left is
    never underestimated). A batch holds at most `batch_tokens` tokens with its padding, or one row."""
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
    """(input_ids_BL, attention_mask_BL), int64: rows padded to the longest, rounded up to `multiple`."""
    longest = max((len(row) for row in rows), default=1)
    length = (max(longest, 1) + multiple - 1) // multiple * multiple
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        where = slice(length - len(row), length) if side == "left" else slice(0, len(row))
        ids[number, where] = row
        mask[number, where] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)
