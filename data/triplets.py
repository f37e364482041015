"""Queries with positives and negatives as numbers, and what each epoch of training draws from them.

What is drawn is a function of (seed, epoch, query) alone: any worker can make any step, and a run that goes on from a
checkpoint draws what it would have drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.errors import DataError
from data.tables import SCORED


@dataclass(frozen=True)
class Step:
    """One step's batch as one of its workers sees it. Q: this worker's queries, P: the passages of all."""

    query_Q: np.ndarray
    passage_P: np.ndarray
    """Corpus rows, each text once, the first worker's first: a duplicate would count twice as a negative."""
    offsets: list[int]
    """Where each worker's passages begin, and the end."""
    own_Q: list[np.ndarray]
    """The places in passage_P of each query's positive, and of its negatives."""
    teacher_Q: list[np.ndarray] | None
    """A teacher's scores of each query's positive and negatives, float32, where they are asked for."""
    queries: int
    """Of all workers."""


class Triplets:
    """Mined queries. `rows` are rows of the corpus; queries without a positive are left out.

    teacher: also read the scores that a reranker gave (`data.tables.SCORED`). Raises DataError where nothing is left,
    for ids that the corpus does not have, and for scores that are missing or no numbers.
    """

    def __init__(self, mined: pa.Table, corpus: pa.Table, *, teacher: bool = False) -> None:
        mined = mined.filter(pc.greater(pc.list_value_length(mined["positives"]), 0))
        if not len(mined):
            raise DataError("mined: no query has a positive; expected some; look at what was mined")
        self.query_text: pa.ChunkedArray = mined["text"]
        self.corpus_text: pa.ChunkedArray = corpus["text"]
        self._positive_rows, self._positive_ends = rows_of(mined, "positives", corpus)
        self._negative_rows, self._negative_ends = rows_of(mined, "negatives", corpus)
        self._teacher = [_scores(mined, name) for name in ("positives", "negatives")] if teacher else None
        texts = pc.unique(self.corpus_text)
        self.text_of_row: np.ndarray = _numbers(self.corpus_text, texts)
        """int64 [corpus]: equal exactly where texts are equal."""
        self._lengths = pc.utf8_length(self.corpus_text).to_numpy(), pc.utf8_length(self.query_text).to_numpy()
        self._order: tuple[tuple[int, int, int], list[np.ndarray]] = ((-1, -1, -1), [])
        self.text_of_query: np.ndarray = _numbers(self.query_text, texts)
        """The same numbering; -1 for what is no text of the corpus."""

    def __len__(self) -> int:
        return len(self.query_text)

    @property
    def negatives(self) -> int:
        """Of all queries together."""
        return len(self._negative_rows)

    def positives(self, query: int) -> np.ndarray:
        """All positives of a query."""
        return self._positive_rows[self._positive_ends[query] : self._positive_ends[query + 1]]

    def steps(self, batch: int) -> int:
        """Steps of an epoch."""
        return -(-len(self) // batch)

    def batches(self, seed: int, epoch: int, batch: int) -> list[np.ndarray]:
        """An epoch's queries, each once, in nearly equal steps of at most `batch`."""
        return np.array_split(np.random.default_rng([seed, epoch]).permutation(len(self)), self.steps(batch))

    def draw(self, seed: int, epoch: int, query: int, negatives: int) -> tuple[int, np.ndarray]:
        """(one positive, at most `negatives` of the negatives) of a query in an epoch."""
        positive, others = self._places(seed, epoch, query, negatives)
        return int(self._positive_rows[positive]), self._negative_rows[others]

    def examples(self, seed: int, epoch: int, query: int, most: int) -> list[tuple[int, int]]:
        """0 to `most` in-context examples for a query in an epoch: (another query, one of its positives).

        None has the query's own text, or an answer that is one of its own positives.
        """
        random = np.random.default_rng([seed, epoch, query + 1, 1])
        wanted, found = int(random.integers(0, most + 1)), list[tuple[int, int]]()
        own = set(self.text_of_row[self.positives(query)].tolist())
        text = self.query_text[query].as_py()
        # A few more than wanted: most fit. Whoever is unlucky gets fewer.
        for other in random.permutation(len(self))[: 4 * wanted + 8].tolist():
            if len(found) == wanted:
                break
            answer = int(random.choice(self.positives(other)))
            if int(self.text_of_row[answer]) not in own and self.query_text[other].as_py() != text:
                found.append((other, answer))
        return found

    def _places(self, seed: int, epoch: int, query: int, negatives: int) -> tuple[int, np.ndarray]:
        """What `draw` draws, as places in the flat lists."""
        random = np.random.default_rng([seed, epoch, query + 1])
        (first, last), (start, stop) = (ends[query : query + 2] for ends in (self._positive_ends, self._negative_ends))
        return int(random.choice(np.arange(first, last))), random.permutation(np.arange(start, stop))[:negatives]

    def step(self, seed: int, epoch: int, number: int, batch: int, negatives: int, rank: int, workers: int) -> Step:
        """Step `number` of an epoch. Each worker gets about as many queries, and passages, of each length."""
        if self._order[0] != (seed, epoch, batch):
            self._order = (seed, epoch, batch), self.batches(seed, epoch, batch)
        queries = self._order[1][number]
        drawn = [self._places(seed, epoch, int(query), negatives) for query in queries]
        rows = [np.array([self._positive_rows[one], *self._negative_rows[others]], np.int64) for one, others in drawn]
        _, first, text_of = np.unique(self.text_of_row[np.concatenate(rows)], return_index=True, return_inverse=True)
        passages = np.concatenate(rows)[first]
        dealt = deal(self._lengths[0][passages], workers)
        place_of = np.empty(len(passages), np.int64)
        place_of[np.concatenate(dealt)] = np.arange(len(passages))
        places = np.split(place_of[text_of], np.cumsum([len(part) for part in rows])[:-1])
        mine = deal(self._lengths[1][queries], workers)[rank]
        teacher = None
        if self._teacher is not None:
            right, wrong = self._teacher
            teacher = [np.array([right[drawn[i][0]], *wrong[drawn[i][1]]], np.float32) for i in mine]
        return Step(
            queries[mine],
            passages[np.concatenate(dealt)],
            [0, *np.cumsum([len(part) for part in dealt]).tolist()],
            [places[i] for i in mine],
            teacher,
            len(queries),
        )


def deal(lengths: Sequence[int] | np.ndarray, workers: int) -> list[np.ndarray]:
    """Rows for each worker, the longest first: about as many of each length for everyone."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    return [order[worker::workers] for worker in range(workers)]


def rows_of(table: pa.Table, column: str, corpus: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """(corpus rows of a column of lists of ids, where each list begins and the last ends), int64.

    Raises DataError for an id that the corpus does not have."""
    lists = table[column].combine_chunks()
    names = lists.flatten()
    rows = pc.index_in(names, value_set=corpus["id"].combine_chunks())
    if rows.null_count:
        unknown = names[int(np.flatnonzero(rows.is_null().to_numpy(zero_copy_only=False))[0])]
        raise DataError(f"{column}: id '{unknown}' is not in the corpus; expected ids of the corpus; make them anew")
    ends = np.cumsum([0, *pc.list_value_length(lists).to_pylist()])
    return rows.to_numpy(zero_copy_only=False).astype(np.int64), ends.astype(np.int64)


def padded(rows: Sequence[np.ndarray], filler: float) -> np.ndarray:
    """Rows of different lengths as one array, filled up at their ends."""
    out = np.full((len(rows), max(map(len, rows), default=0)), filler, rows[0].dtype if len(rows) else np.int64)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return out


def _scores(mined: pa.Table, ids: str) -> np.ndarray:
    """The teacher's scores beside a column of ids, flat, float32."""
    column = SCORED[ids]
    if column not in mined.column_names:
        raise DataError(f"mined: has no column {column}; expected a reranker's scores to learn from; run `score` on it")
    counts, wanted = (pc.list_value_length(mined[name]).to_pylist() for name in (column, ids))
    for row, (found, expected) in enumerate(zip(counts, wanted, strict=True)):
        if (found or 0) != expected:
            raise DataError(
                f"mined: row {row}: {found or 'no'} {column} for {expected} {ids}; expected one each; score them again"
            )
    lists = mined[column].combine_chunks()
    flat = pc.fill_null(lists.flatten(), float("nan")).to_numpy(zero_copy_only=False).astype(np.float32)
    if not np.isfinite(flat).all():
        row = int(np.searchsorted(np.cumsum(counts), np.flatnonzero(~np.isfinite(flat))[0], side="right"))
        raise DataError(f"mined: row {row}: a score in {column} is no number; expected all to be; score them again")
    return flat


def _numbers(texts: pa.ChunkedArray, among: pa.Array) -> np.ndarray:
    found = pc.fill_null(pc.index_in(texts, value_set=among), -1)
    return found.to_numpy().astype(np.int64)
