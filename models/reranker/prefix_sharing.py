"""Prefix sharing: the pairs of one query share a row of the batch, so that the query is computed once.

In a causal model a token's state depends only on the tokens before it. A row can therefore hold the query once,
then the continuation of each pair, if continuations do not attend to each other and their positions follow the query's:

    ids        query query query | passage prompt | passage passage prompt
    positions    0     1     2   |    3      4    |    3       4      5

Scores and gradients equal those of separate pairs (the tree attention of SpecInfer, Miao et al. 2024, with a tree of
depth one). With queries of 150 tokens and passages of 20, this is a quarter of the work.

Legend: B rows, L tokens (padded).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

ROW_TOKENS = 1024
"""Largest number of tokens in a row of several pairs: mask and attention grow with the square."""


@dataclass(frozen=True)
class PrefixRow:
    """A row of a batch: one pair, or several pairs with the same prefix."""

    ids: list[int]
    token_types: list[int] | None
    """Token types, if the model has them."""
    prefix_length: int
    """Tokens of the prefix."""
    ends: tuple[int, ...]
    """End (exclusive) of each pair's own tokens, which begin at the end of the previous pair."""


def make_pair_row(
    first: Sequence[int], second: Sequence[int], token_types: tuple[int, int] | None
) -> PrefixRow:
    """Return the row of one pair."""
    both = [*first, *second]
    if token_types is None:
        marks = None
    else:
        marks = [token_types[0]] * len(first) + [token_types[1]] * len(second)
    return PrefixRow(both, marks, len(first), (len(both),))


def make_shared_rows(first: Sequence[int], seconds: Sequence[Sequence[int]]) -> list[PrefixRow]:
    """Return rows of at most ROW_TOKENS tokens, or one pair, for the pairs of one prefix in their order."""
    rows = []
    ids = list(first)
    ends = list[int]()
    for second in seconds:
        if ends and len(ids) + len(second) > ROW_TOKENS:
            rows.append(PrefixRow(ids, None, len(first), tuple(ends)))
            ids = list(first)
            ends = []
        ids += second
        ends.append(len(ids))
    if ends:
        return [*rows, PrefixRow(ids, None, len(first), tuple(ends))]
    return rows


def index_pairs(rows: Sequence[PrefixRow]) -> list[np.ndarray]:
    """Return, for each row, the indices of its pairs among all pairs."""
    counts = np.array([len(row.ends) for row in rows], np.int64)
    return np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])


def make_tree_attention(rows: Sequence[PrefixRow], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (positions, owner), both int64 [B, L]. owner: the pair of a token, from 1; 0: the prefix, to which all
    pairs attend; -1: padding."""
    owner_BL = np.full((len(rows), length), -1)
    positions_BL = np.zeros((len(rows), length), np.int64)
    for b, row in enumerate(rows):
        owner_BL[b, : row.prefix_length] = 0
        positions_BL[b, : row.prefix_length] = np.arange(row.prefix_length)
        starts = (row.prefix_length, *row.ends[:-1])
        for number, (start, end) in enumerate(zip(starts, row.ends, strict=True), 1):
            owner_BL[b, start:end] = number
            positions_BL[b, start:end] = row.prefix_length + np.arange(end - start)
    return positions_BL, owner_BL


ARCHITECTURES = (
    "ernie4_5",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "gpt2",
    "gpt_neox",
    "gpt_oss",
    "granite",
    "helium",
    "llama",
    "ministral",
    "mistral",
    "mixtral",
    "nemotron",
    "olmo",
    "olmo2",
    "olmo3",
    "opt",
    "phi",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "stablelm",
    "starcoder2",
)
"""The `model_type` of models in which a mask and positions keep the parts of a row apart, as tests show. Convolutions
and states (Mamba, LFM2, Qwen3.5) read the tokens before, whatever the mask; others build their own masks or positions.
Packed conversations and pairs that share a query need such a model."""


def can_share_prefix(model: Any, max_length: int) -> bool:
    """Whether a decoder attends to all of a pair of `max_length` tokens, and supports such masks and positions."""
    config = model.config
    window = getattr(config, "sliding_window", None)
    return (
        config.model_type in ARCHITECTURES
        and config._attn_implementation in ("sdpa", "eager")
        and (not window or window >= max_length)
    )
