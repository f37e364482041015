"""A list of documents in another order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def reranked(
    documents: Sequence[str], scores: Sequence[float] | np.ndarray, positives: Sequence[str], ranks: Sequence[int]
) -> tuple[np.ndarray, list[int]]:
    """(the order of `documents` by `scores`, the ranks of `positives` after it), ranks from 1.

    Equal scores stay in their order. documents: the first of the whole ranking, in which `ranks` are the positives'
    ranks: one that is not among them keeps its rank, since all of them stood before it and still do.
    """
    order = np.argsort(-np.asarray(scores, np.float32), kind="stable")
    place = {documents[old]: new for new, old in enumerate(order.tolist(), 1)}
    return order, [place.get(name, rank) for name, rank in zip(positives, ranks, strict=True)]
