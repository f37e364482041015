"""Contrastive training batches: a pure function of (seed, epoch, step), whatever the number of workers.

Each epoch shuffles the queries and draws, for each, one positive and some hard negatives. A resumed run asks for the
step it is at and gets the same rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import DataError
from data.negatives import text_ids
from data.tables import read_shards


@dataclass(frozen=True)
class Batch:
    """One worker's share of a step. queries: rows of `TrainingRows.queries`. passages: distinct rows of `.passages`.
    positives: for each query, the place of its positive in `passages`. all_queries: of all workers together."""

    queries: np.ndarray
    passages: np.ndarray
    positives: np.ndarray
    all_queries: int


class TrainingRows:
    """Mined queries, and the corpus that their positives and negatives name."""

    def __init__(self, mined: Path, corpus: Path, negatives: int, seed: int) -> None:
        table, documents = read_shards(mined), read_shards(corpus, ["id", "text"])
        self.queries: list[str] = table["text"].to_pylist()
        self.passages: list[str] = documents["text"].to_pylist()
        row_of = {name: row for row, name in enumerate(documents["id"].to_pylist())}
        try:
            self.positives = [np.array([row_of[n] for n in names]) for names in table["positives"].to_pylist()]
            self.negatives = [np.array([row_of[n] for n in names], int) for names in table["negatives"].to_pylist()]
        except KeyError as error:
            raise DataError(
                f"{mined}: names document {error}, which {corpus} does not hold; mine with this corpus"
            ) from None
        self.count, self.seed = negatives, seed
        self.text_ids, known = text_ids(self.passages)
        self.query_text_ids = np.array([known.get(text, -1) for text in self.queries], dtype=np.int64)

    def steps(self, batch: int, workers: int) -> int:
        """Steps per epoch. A last batch that does not give every worker a query is left out."""
        whole, rest = divmod(len(self.queries), batch)
        steps = whole + (rest >= max(2, workers))
        if not steps:
            raise DataError(
                f"training: {len(self.queries)} queries for {workers} workers; expected more than one for each;"
                " give more data or fewer workers"
            )
        return steps

    def batch(self, epoch: int, step: int, size: int, rank: int, workers: int) -> Batch:
        """The share of worker `rank` in step `step` of `epoch`, all from 0."""
        rows = self._order(epoch)[step * size : (step + 1) * size]
        own = rows[rank::workers]
        chosen = [self._draw(epoch, int(row)) for row in own]
        flat = np.concatenate([part for positive, negatives in chosen for part in ([positive], negatives)])
        # A passage that several queries share is embedded once; in the order of first appearance.
        distinct, first = np.unique(flat, return_index=True)
        passages = distinct[np.argsort(first)]
        place = {int(row): number for number, row in enumerate(passages)}
        return Batch(own, passages, np.array([place[positive] for positive, _ in chosen]), len(rows))

    def known(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(indptr, text ids) of all positives of these queries, as compressed rows of int64."""
        lists = [self.text_ids[self.positives[int(row)]] for row in queries]
        indptr = np.cumsum([0, *(len(part) for part in lists)], dtype=np.int64)
        return indptr, np.concatenate(lists) if lists else np.zeros(0, np.int64)

    @functools.lru_cache(maxsize=2)  # noqa: B019 - one object lives as long as its worker
    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(len(self.queries))

    def _draw(self, epoch: int, row: int) -> tuple[int, np.ndarray]:
        random = np.random.default_rng([self.seed, epoch, row])
        negatives = self.negatives[row]
        if len(negatives) > self.count:
            negatives = random.permutation(negatives)[: self.count]
        return int(random.choice(self.positives[row])), negatives
