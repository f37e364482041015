"""Pairs as rows of a batch; the pairs of one query may share a row, and with it what the model computes of the query.

To a causal model a token's state depends on what stands before it alone. So a row can hold a query once and then, one
after the other, what each of its pairs goes on with, as long as none sees the others and each counts its positions on
from the query:

    ids        query query query | passage prompt | passage passage prompt
    positions    0     1     2   |    3      4    |    3       4      5

The scores and their gradients are those of the pairs by themselves (the tree attention of SpecInfer, Miao et al. 2024,
with a tree of depth one). With queries of 150 tokens and passages of 20 that is a quarter of the work.

Legend: B rows, L tokens (padded).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ROW_TOKENS = 1024
"""At most so many in a row of several pairs: the mask, and the attention that it masks, grow with the square."""


@dataclass(frozen=True)
class Row:
    """One pair, or several with the same beginning."""

    ids: list[int]
    types: list[int] | None
    """Token types, where the model has them."""
    shared: int
    """Tokens of the beginning."""
    ends: tuple[int, ...]
    """Where each pair's own tokens end, itself excluded; they begin where the last one's ended."""


def whole(first: Sequence[int], second: Sequence[int], types: tuple[int, int] | None) -> Row:
    """One pair."""
    both = [*first, *second]
    marks = None if types is None else [types[0]] * len(first) + [types[1]] * len(second)
    return Row(both, marks, len(first), (len(both),))


def together(first: Sequence[int], seconds: Sequence[Sequence[int]], most: int = ROW_TOKENS) -> list[Row]:
    """The pairs of one beginning in as few rows of at most `most` tokens as their order allows; at least one a row."""
    rows: list[Row] = []
    ids, ends = list(first), list[int]()
    for second in seconds:
        if ends and len(ids) + len(second) > most:
            rows.append(Row(ids, None, len(first), tuple(ends)))
            ids, ends = list(first), []
        ids += second
        ends.append(len(ids))
    return [*rows, Row(ids, None, len(first), tuple(ends))] if ends else rows


def places(rows: Sequence[Row]) -> list[np.ndarray]:
    """For each row, where its pairs stand among the pairs of all."""
    counts = np.array([len(row.ends) for row in rows], np.int64)
    return np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])


def tree(rows: Sequence[Row], length: int) -> tuple[np.ndarray, np.ndarray]:
    """(positions int64 [B, L], mask bool [B, 1, L, L]: whether a token (third axis) sees another)."""
    owner_BL = np.full((len(rows), length), -1)
    positions_BL = np.zeros((len(rows), length), np.int64)
    for b, row in enumerate(rows):
        owner_BL[b, : row.shared] = 0
        positions_BL[b, : row.shared] = np.arange(row.shared)
        starts = (row.shared, *row.ends[:-1])
        for number, (start, end) in enumerate(zip(starts, row.ends, strict=True), 1):
            owner_BL[b, start:end] = number
            positions_BL[b, start:end] = row.shared + np.arange(end - start)
    same = owner_BL[:, :, None] == owner_BL[:, None, :]
    seen = (same | (owner_BL[:, None, :] == 0)) & np.tri(length, dtype=bool)
    return positions_BL, seen[:, None]


SHARING = ("gemma", "llama", "mistral", "qwen2", "qwen3")
"""Architectures whose scores are tested to be the same. Others may build masks or positions of their own."""


def can_share(model: Any, max_length: int) -> bool:
    """Whether a decoder sees all of a pair of `max_length` tokens, and takes such a mask and such positions."""
    config = model.config
    window = getattr(config, "sliding_window", None)
    return (
        config.model_type in SHARING
        and config._attn_implementation in ("sdpa", "eager")
        and (not window or window >= max_length)
    )
