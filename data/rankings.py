"""Reordering of ranked documents, and statistics: how many are relevant, how long texts are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def reorder(
    documents: Sequence[str],
    scores: Sequence[float] | np.ndarray,
    positives: Sequence[str],
    ranks: Sequence[int],
) -> tuple[np.ndarray, list[int]]:
    """Return (the order of `documents` by `scores`, the ranks of `positives` after reordering). Ranks count from 1.

    documents: the top of a whole ranking. ranks: the ranks of the positives in the whole ranking; a positive below the
    top keeps its rank. Documents with equal scores are ordered by id, descending, as trec_eval orders them."""
    pairs = list(zip(np.asarray(scores, np.float32).tolist(), documents, strict=True))
    order = sorted(range(len(pairs)), key=pairs.__getitem__, reverse=True)
    place = {}
    for new, old in enumerate(order, 1):
        place[documents[old]] = new
    return np.array(order, np.int64), [
        place.get(name, rank) for name, rank in zip(positives, ranks, strict=True)
    ]


def summarize_counts(counts: Sequence[int] | np.ndarray) -> dict[str, float]:
    """Summarize the relevant documents of each query: mean, std (of the population), P75 and P95 (interpolated), max,
    and `none`, the number of queries without one."""
    count_Q = np.asarray(counts if len(counts) else [0])
    values = (count_Q.mean(), count_Q.std(), *np.percentile(count_Q, [75, 95]))
    spread = dict(
        zip(
            ("mean", "std", "P75", "P95"), (round(float(value), 4) for value in values), strict=True
        )
    )
    return {
        **spread,
        "max": int(count_Q.max()),
        "none": len(counts) - int(np.count_nonzero(counts)),
    }


def summarize_tokens(name: str, lengths: Sequence[int]) -> dict[str, float | int | str]:
    """Summarize the tokens of texts: mean, P95 (interpolated) and max."""
    tokens_N = np.array(lengths, np.int32)
    values = np.zeros(3)
    if len(tokens_N):
        values = np.array([tokens_N.mean(), np.quantile(tokens_N, 0.95), tokens_N.max()])
    return {
        "tokens of": name,
        **dict(zip(("mean", "P95", "max"), np.round(values, 1).tolist(), strict=True)),
    }
