"""The selection of hard negatives from mined candidates.

The window is that of FlagEmbedding's `hn_mine`: take the best candidates by similarity, cut the window, then drop the
positives and the query's own text, draw `num_negatives` of what is left, and fill up at random from the corpus.
Unlike the original, the random fill never contains a positive, the query's own text, a document above the ceiling, or a
document that was already selected. If even the last ranked document is above the ceiling, nothing is filled.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ratchet.data.negative_settings import NegativeSettings


@dataclass(frozen=True)
class ChosenNegatives:
    """The negatives of one query."""

    rows: np.ndarray
    """Corpus rows of the negatives."""
    random_fill: int
    """Number of negatives, at the end of `rows`, that were drawn from the whole corpus."""
    suspects: np.ndarray
    """Suspected false negatives: corpus rows in the window, above the ceiling and not labelled as positive."""


def choose_negatives(
    settings: NegativeSettings,
    candidates: np.ndarray,
    scores: np.ndarray,
    positive: float,
    forbidden: Collection[int],
    texts: np.ndarray,
    seed: int,
    query_id: str,
    among: np.ndarray | None = None,
) -> ChosenNegatives:
    """Choose the negatives of one query.

    candidates: int64 [K], corpus rows, best first. scores: [K], their similarities. positive: similarity of the best
    positive. forbidden: text hashes of the query itself, its positives and the positives of equal queries. texts: [N],
    text hash of each corpus row. among: corpus rows from which missing negatives are drawn; None: all. The draw depends
    on seed and query id only, not on the shard or its other queries."""
    digest = hashlib.sha256(f"{seed}\n{query_id}".encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    window = slice(*settings.window)
    rows = candidates[window]
    values = scores[window]
    allowed = ~np.isin(texts[rows], np.array(list(forbidden), texts.dtype))
    # Among documents with equal text, only the best-ranked counts.
    first = np.zeros(len(rows), dtype=bool)
    first[np.unique(texts[rows], return_index=True)[1]] = True
    allowed &= first
    ceiling = settings.ceiling(positive)
    below = values <= ceiling
    floor = -np.inf if settings.min_score is None else settings.min_score
    suspects = rows[allowed & ~below]
    pool = rows[allowed & below & (values >= floor)]
    if len(pool) > settings.num_negatives:
        if settings.sampling_strategy == "top":
            keep = np.arange(settings.num_negatives)
        else:
            keep = random.choice(len(pool), settings.num_negatives, replace=False)
        pool = pool[np.sort(keep)]
    missing = settings.num_negatives - len(pool)
    if len(scores) and scores[-1] > ceiling:
        missing = 0  # documents that rank behind the window may be above the ceiling too
    # Above the ceiling are also documents before the window, which the random fill would draw in a small corpus.
    above = candidates[scores > ceiling]
    taken = {*forbidden, *texts[pool].tolist(), *texts[above].tolist()}
    filling = _fill(missing, taken, texts, among, random)
    chosen = np.concatenate([pool, filling])
    return ChosenNegatives(chosen.astype(np.int64), len(filling), suspects)


def _fill(
    count: int,
    taken: set[int],
    texts: np.ndarray,
    among: np.ndarray | None,
    random: np.random.Generator,
) -> np.ndarray:
    """Draw up to `count` of the corpus rows `among` (None: all rows), with distinct texts that are not in `taken`.
    Return fewer if there are no more."""
    found = list[int]()
    total = len(texts) if among is None else len(among)

    def take(drawn: np.ndarray) -> None:
        for row in (drawn if among is None else among[drawn]).tolist():
            if len(found) < count and int(texts[row]) not in taken:
                taken.add(int(texts[row]))
                found.append(row)

    take(random.integers(0, total, size=4 * count))
    # A few draws suffice in a corpus that is much larger than `taken`; otherwise all rows are tried in random order.
    if len(found) < count:
        take(random.permutation(total))
    return np.array(found, dtype=np.int64)
