"""Batches of rows of similar length, padding, and a check that outputs are finite. Batches for inference have a token
budget, which bounds memory. Groups for training have the least total cost of padding and forward passes."""

from collections.abc import Sequence

import numpy as np
import torch

from ratchet.errors import ModelError
from ratchet.models.pass_size import MULTIPLE

OVERHEAD_TOKENS = 64
"""Fixed cost of a forward and backward pass, in tokens of padding: on CPUs, and the minimum on GPUs."""
GPU_OVERHEAD = 1e9
"""Fixed cost on GPUs, in tokens of padding times the square of the hidden size. A layer launches as many kernels in a
small model as in a large one (5 ms beside an H200), while the work per token grows with that square."""


def batch_by_tokens(
    lengths: Sequence[int] | np.ndarray, batch_tokens: int, multiple: int = MULTIPLE
) -> list[np.ndarray]:
    """Return the row indices of each batch, longest rows first, so that a batch that does not fit in memory fails at
    once. A batch holds at most `batch_tokens` padded tokens, or one row."""
    lengths = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    padded = (lengths + multiple - 1) // multiple * multiple
    order = np.argsort(-padded, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // int(padded[order[start]]))
        batches.append(order[start : start + rows])
        start += rows
    return batches


def find_overhead(device: str, hidden_size: int) -> float:
    """Return the fixed cost of a forward and backward pass in tokens of padding. device: `cpu` or another type."""
    if device == "cpu":
        return OVERHEAD_TOKENS
    return max(OVERHEAD_TOKENS, GPU_OVERHEAD / hidden_size**2)


def group_by_length(
    lengths: Sequence[int] | np.ndarray,
    tokens: int,
    multiple: int,
    overhead: float = OVERHEAD_TOKENS,
) -> list[np.ndarray]:
    """Return the row indices of each forward pass with the least total cost, by dynamic programming over the lengths.

    A pass holds at most `tokens` padded tokens, or one row, and costs its padded tokens plus `overhead`. Lengths are
    rounded up to `multiple`."""
    padded = (np.maximum(lengths, 1) + multiple - 1) // multiple * multiple
    values, counts = np.unique(padded, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)])
    cost = [0.0]
    cut = [0]
    for stop in range(1, len(values) + 1):
        rows = before[stop] - before[:stop]
        passes = -(-rows // max(1, tokens // values[stop - 1]))
        every = np.array(cost) + rows * values[stop - 1] + overhead * passes
        cut.append(int(every.argmin()))
        cost.append(float(every.min()))
    order = np.argsort(padded, kind="stable")
    groups = []
    stop = len(values)
    while stop > 0:
        rows = order[before[cut[stop]] : before[stop]]
        groups += np.array_split(rows, -(-len(rows) // max(1, tokens // int(values[stop - 1]))))
        stop = cut[stop]
    return groups


def pad(
    rows: Sequence[Sequence[int]], pad_id: int, side: str = "right", multiple: int = MULTIPLE
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad rows to the longest length, rounded up to `multiple`. Returns (input_ids_BL, attention_mask_BL), int64."""
    longest = max([1, *map(len, rows)])
    length = -(-longest // multiple) * multiple
    ids = np.full((len(rows), length), pad_id, dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        where = slice(length - len(row), length) if side == "left" else slice(0, len(row))
        ids[number, where] = row
        mask[number, where] = 1
    return torch.from_numpy(ids), torch.from_numpy(mask)


def check_finite(name: str, values: np.ndarray) -> None:
    """Raise ModelError for a row of values [N] or [N, D] that are not finite. name: what a row is, for the message."""
    bad = np.nonzero(~np.isfinite(values))[0]
    if len(bad):
        raise ModelError(f"{name} {bad[0]}: not finite; expected numbers; try dtype=float32")
