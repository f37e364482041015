"""Which mined candidates become hard negatives.

The window is FlagEmbedding's `hn_mine`: take the best `hi` by similarity, cut `[lo:hi]`, only then drop the positives
and the query's own text, draw `count` of what is left, and fill up at random from the corpus. Unlike the original, the
filling never gives a positive, the query's own text, or a document that was chosen already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from data.errors import DataError


@dataclass(frozen=True)
class Window:
    """How negatives are chosen. Ranks count from 0; similarities are those that the candidates were ranked by."""

    lo: int
    hi: int
    count: int
    order: Literal["sample", "top"] = "sample"
    """`sample`: at random from the window, by seed; `top`: the best-ranked first."""
    margin: float | None = None
    """A negative scores at most the best positive minus this."""
    percent_of_positive: float | None = None
    """A negative scores at most this share of the best positive (NV-Retriever's TopK-PercPos; 0.95 there)."""
    max_score: float | None = None
    min_score: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.lo < self.hi:
            raise DataError(f"window: {self.lo},{self.hi} given; expected 0 <= lo < hi, as in 2,200")
        if self.count < 1:
            raise DataError(f"negatives: {self.count} given; expected 1 or more")

    def ceiling(self, positive: float) -> float:
        """The highest score that a negative may have beside a positive of this score."""
        limits = [np.inf if self.max_score is None else self.max_score]
        if self.margin is not None:
            limits.append(positive - self.margin)
        if self.percent_of_positive is not None:
            # A share of a negative similarity would be above it.
            limits.append(positive - (1 - self.percent_of_positive) * abs(positive))
        return float(min(limits))


@dataclass(frozen=True)
class Chosen:
    """rows: corpus rows of the negatives. filled: how many of them, at the end, were drawn from the whole corpus.
    suspects: rows that the ceiling removed though they are no labelled positive: perhaps unlabelled positives."""

    rows: np.ndarray
    filled: int
    suspects: np.ndarray


def choose(
    window: Window,
    candidates: np.ndarray,
    scores: np.ndarray,
    positive: float,
    forbidden: Collection[int],
    texts: np.ndarray,
    seed: int,
    query_id: str,
) -> Chosen:
    """Negatives of one query.

    candidates: [K] corpus rows, best first. scores: [K] their similarities. positive: the best positive's similarity.
    forbidden: text ids of the positives and of the query itself. texts: [N] text id of each corpus row (rows with equal
    text have equal ids). The draw depends on seed and query id alone, not on the shard or its neighbours.
    """
    random = np.random.default_rng(_seed(seed, query_id))
    rows, values = candidates[window.lo : window.hi], scores[window.lo : window.hi]
    allowed = ~np.isin(texts[rows], np.fromiter(forbidden, dtype=texts.dtype, count=len(forbidden)))
    # Of two documents with one text only the better-ranked counts.
    first = np.zeros(len(rows), dtype=bool)
    first[np.unique(texts[rows], return_index=True)[1]] = True
    allowed &= first
    below = values <= window.ceiling(positive)
    if window.min_score is not None:
        below_floor = values < window.min_score
    else:
        below_floor = np.zeros(len(rows), dtype=bool)
    suspects = rows[allowed & ~below]
    pool = rows[allowed & below & ~below_floor]
    if len(pool) > window.count:
        keep = (
            random.choice(len(pool), window.count, replace=False)
            if window.order == "sample"
            else np.arange(window.count)
        )
        pool = pool[np.sort(keep)]
    missing = window.count - len(pool)
    filling = _fill(missing, {*forbidden, *texts[pool].tolist(), *texts[suspects].tolist()}, texts, random)
    return Chosen(np.concatenate([pool, filling]).astype(np.int64), len(filling), suspects)


def _fill(count: int, taken: set[int], texts: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Up to `count` corpus rows with texts of their own, none in `taken`; fewer if the corpus has no more."""
    found: list[int] = []

    def take(rows: np.ndarray) -> None:
        for row in rows.tolist():
            if len(found) < count and int(texts[row]) not in taken:
                taken.add(int(texts[row]))
                found.append(row)

    if count:
        take(random.integers(0, len(texts), size=4 * count))
    # A few draws find enough in any corpus that is much larger than what is taken; else every row is looked at.
    if len(found) < count:
        take(random.permutation(len(texts)))
    return np.array(found, dtype=np.int64)


def text_ids(texts: Sequence[str]) -> tuple[np.ndarray, dict[str, int]]:
    """[N] int64 ids, equal for equal texts, and the id of each text."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(text, len(known)) for text in texts], dtype=np.int64), known


def _seed(seed: int, query_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\n{query_id}".encode()).digest()[:8], "big")
