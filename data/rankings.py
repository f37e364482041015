"""Reordering of ranked documents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def reorder(
    documents: Sequence[str], scores: Sequence[float] | np.ndarray, positives: Sequence[str], ranks: Sequence[int]
) -> tuple[np.ndarray, list[int]]:
    """Return (the order of `documents` by `scores`, the ranks of `positives` after reordering). Ranks count from 1.

    documents: the top of a whole ranking. ranks: the ranks of the positives in the whole ranking; a positive below the
    top keeps its rank. The order is stable for equal scores.
    """
    order = np.argsort(-np.asarray(scores, np.float32), kind="stable")
    place = {documents[old]: new for new, old in enumerate(order.tolist(), 1)}
    return order, [place.get(name, rank) for name, rank in zip(positives, ranks, strict=True)]
