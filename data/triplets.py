"""Training data of retrieval models: queries with positives and hard negatives, and the batches of each epoch.

Every draw is a function of (seed, epoch, query). Any worker can therefore make any batch, and a run that resumes from a
checkpoint sees the same data as one that was never stopped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.data.tables import (
    TEACHER_SCORES,
    DocumentRows,
    hash_queries,
    hash_texts,
    list_shards,
    read_queries,
)
from ratchet.errors import DataError


@dataclass(frozen=True)
class TripletBatch:
    """One worker's view of a batch; rows are int64. Q: queries of this worker; P: passages of all workers."""

    query_Q: np.ndarray
    """Rows of `Triplets.queries`."""
    passage_P: np.ndarray
    """Corpus rows, ordered by worker. Each text appears once: a duplicate would count twice as a negative."""
    offsets: list[int]
    """The start of each worker's passages in passage_P, and the end of the last."""
    own_Q: list[np.ndarray]
    """Per query, the positions in passage_P of its positive (first) and of its negatives."""
    teacher_Q: list[np.ndarray] | None
    """Per query, the teacher scores of its positive and of its negatives, float32. None without a teacher."""
    queries: int
    """Number of queries in the batch, over all workers."""


class Triplets:
    """Mined queries with their positives and negatives as rows of the corpus. Queries without a positive are dropped.

    seed: of all draws. batch_size: maximum number of queries per batch. num_negatives: maximum number of negatives of a
    query in a batch. teacher: also read the teacher scores (`ratchet.data.tables.TEACHER_SCORES`). source_weights: the
    queries of a batch are from one source (the column `source`), and those of a source are used this many times per
    epoch, once if it has no weight; None: batches mix the sources. Raises DataError if no query is left, for ids that
    are not in the corpus, for teacher scores that are missing or not finite, and with source_weights for a single
    source and for a weight of an unknown one."""

    def __init__(
        self,
        mined: pa.Table,
        corpus: pa.Table,
        *,
        seed: int = 0,
        batch_size: int = 64,
        num_negatives: int = 4,
        teacher: bool = False,
        source_weights: Mapping[str, float] | None = None,
    ) -> None:
        self.seed = seed
        self.batch_size = batch_size
        self.num_negatives = num_negatives
        mined = mined.filter(pc.greater(pc.list_value_length(mined["positives"]), 0))
        if not len(mined):
            raise DataError(
                "mined: no query has a positive; expected at least one; check the output of `mine`"
            )
        self.queries: pa.Table = mined
        self.query_text: pa.ChunkedArray = mined["text"]
        self.corpus_text: pa.ChunkedArray = corpus["text"]
        rows = DocumentRows(corpus["id"])
        self._positive_ends, self._positive_rows = find_corpus_rows(mined, "positives", rows)
        self._negative_ends, self._negative_rows = find_corpus_rows(mined, "negatives", rows)
        self._hash_Q = hash_queries(mined)
        self._known = KnownPositives(
            np.repeat(self._hash_Q, np.diff(self._positive_ends)), self._positive_rows
        )
        # `mine` writes suspects; tables with negatives from the data have none.
        self._suspects: tuple[np.ndarray, np.ndarray] | None = None
        if "suspects" in mined.column_names:
            self._suspects = find_corpus_rows(mined, "suspects", rows)
        self._teacher: tuple[np.ndarray, np.ndarray] | None = None
        if teacher:
            self._teacher = (
                _read_teacher_scores(mined, "positives", len(self._positive_rows)),
                _read_teacher_scores(mined, "negatives", len(self._negative_rows)),
            )
        self.text_of_row: np.ndarray = hash_texts(self.corpus_text)
        """int64 [corpus]: the hash of each row's text."""
        self._length_of_row = pc.utf8_length(self.corpus_text).to_numpy()
        self._length_of_query = pc.utf8_length(self.query_text).to_numpy()
        self.own_row: np.ndarray = find_own_rows(mined, rows)
        """int64 [queries]: see `find_own_rows`."""
        self.text_of_query: np.ndarray = hash_texts(self.query_text)
        """int64 [queries]: the hash of each query's text, as in text_of_row."""
        self._sources: list[tuple[np.ndarray, int]] = []
        """Per source its queries, int64, and how many of them are used per epoch. Empty: batches mix the sources."""
        if source_weights is not None:
            self._sources = _split_sources(mined, source_weights)
        self._batches_of_epoch: tuple[int, list[np.ndarray]] = (-1, [])

    def __len__(self) -> int:
        return len(self.query_text)

    @property
    def has_negatives(self) -> bool:
        """Whether any query has a negative."""
        return len(self._negative_rows) > 0

    @property
    def teacher_margin(self) -> float:
        """The mean difference between the teacher scores of positives and of negatives, over queries with both.

        Raises DataError if it is not more than 0: such a teacher knows nothing of relevance."""
        assert self._teacher is not None
        right_Q = _average_lists(self._teacher[0], self._positive_ends)
        wrong_Q = _average_lists(self._teacher[1], self._negative_ends)
        margin = 0.0
        if self.has_negatives:
            margin = float(np.nanmean(right_Q - wrong_Q))
        if margin <= 0:
            raise DataError(
                f"mined: a mean difference of {margin:.3g} between the teacher scores of positives and negatives;"
                " expected more than 0; use another teacher, or set distillation=none"
            )
        return margin

    def positives(self, query: int) -> np.ndarray:
        """Return the corpus rows of a query's positives."""
        return self._positive_rows[self._positive_ends[query] : self._positive_ends[query + 1]]

    def list_no_negatives(self, query: int) -> np.ndarray:
        """Return the corpus rows that must not be negatives of a query: its positives and those of equal queries, the
        suspected false negatives of `mine`, and the query itself if it is a document."""
        found = [self._known.find(self._hash_Q[query])]
        if self._suspects is not None:
            ends, rows = self._suspects
            found.append(rows[ends[query] : ends[query + 1]])
        if self.own_row[query] >= 0:
            found.append(self.own_row[query : query + 1])
        return np.concatenate(found)

    @property
    def num_batches(self) -> int:
        """Number of batches per epoch."""
        return sum(-(-used // self.batch_size) for used in self._used)

    @property
    def smallest_batch(self) -> int:
        """Number of queries of the smallest batch."""
        return min(used // -(-used // self.batch_size) for used in self._used)

    @property
    def _used(self) -> list[int]:
        """Number of queries per epoch, of each source if batches are by source."""
        return [used for _, used in self._sources] or [len(self)]

    def split_epoch(self, epoch: int) -> list[np.ndarray]:
        """Shuffle the queries and split them into nearly equal batches of at most `batch_size`; with batches by source,
        each source on its own, and shuffle the batches."""
        if not self._sources:
            return split_epoch(len(self), self.num_batches, self.seed, epoch)
        if self._batches_of_epoch[0] != epoch:
            self._batches_of_epoch = (epoch, self._split_by_source(epoch))
        return self._batches_of_epoch[1]

    def _split_by_source(self, epoch: int) -> list[np.ndarray]:
        batches: list[np.ndarray] = []
        for number, (rows, used) in enumerate(self._sources):
            # An epoch goes on in the pass over the source where the last epoch ended.
            first_pass, start = divmod(epoch * used, len(rows))
            passes: list[np.ndarray] = []
            while len(passes) * len(rows) < start + used:
                random = np.random.default_rng([self.seed, number, first_pass + len(passes)])
                passes.append(random.permutation(rows))
            drawn = np.concatenate(passes)[start : start + used]
            batches += np.array_split(drawn, -(-used // self.batch_size))
        order = np.random.default_rng([self.seed, epoch]).permutation(len(batches))
        return [batches[i] for i in order]

    def draw(self, epoch: int, query: int) -> tuple[int, np.ndarray]:
        """Draw (one positive, at most `num_negatives` negatives) of a query, as corpus rows."""
        positive, negatives = self._draw_positions(epoch, query)
        return int(self._positive_rows[positive]), self._negative_rows[negatives]

    def draw_examples(self, epoch: int, query: int, most: int) -> list[tuple[int, int]]:
        """Draw 0 to `most` in-context examples for a query: (another query, one of its positives).

        No example has the query's own text, or one of its positives as the answer."""
        random = np.random.default_rng([self.seed, epoch, query + 1, 1])
        wanted = int(random.integers(0, most + 1))
        found = list[tuple[int, int]]()
        own = self.text_of_row[self._known.find(self._hash_Q[query])]
        # A few more candidates than wanted, since most of them qualify. Rarely a query gets fewer examples.
        candidates = random.choice(len(self), min(len(self), 4 * wanted + 8), replace=False)
        for other in candidates.tolist():
            if len(found) == wanted:
                break
            answer = int(random.choice(self.positives(other)))
            is_same = self.text_of_query[other] == self.text_of_query[query]
            if self.text_of_row[answer] not in own and not is_same:
                found.append((other, answer))
        return found

    def _draw_positions(self, epoch: int, query: int) -> tuple[int, np.ndarray]:
        """Draw as `draw` does, and return positions in the flat arrays."""
        random = np.random.default_rng([self.seed, epoch, query + 1])
        first, last = self._positive_ends[query : query + 2]
        wrong = np.arange(*self._negative_ends[query : query + 2])
        known = self._known.find(self._hash_Q[query])
        if len(known) > last - first:  # other queries equal this one
            texts = self.text_of_row[self._negative_rows[wrong]]
            wrong = wrong[~np.isin(texts, self.text_of_row[known])]
        positive = int(random.choice(np.arange(first, last)))
        return positive, random.permutation(wrong)[: self.num_negatives]

    def batch(self, epoch: int, step: int, worker_rank: int = 0, workers: int = 1) -> TripletBatch:
        """Make the batch of a training step of an epoch, for one worker. All workers get about as many texts of each
        length."""
        queries = self.split_epoch(epoch)[step]
        rows = []
        scores = []
        for query in queries:
            positive, negatives = self._draw_positions(epoch, int(query))
            rows.append(
                np.r_[self._positive_rows[positive], self._negative_rows[negatives]].astype(
                    np.int64
                )
            )
            if self._teacher is not None:
                scores.append(np.r_[self._teacher[0][positive], self._teacher[1][negatives]])
        row_T = np.concatenate(rows)
        _, first, text_of_T = np.unique(
            self.text_of_row[row_T], return_index=True, return_inverse=True
        )
        passages = row_T[first]
        parts = distribute(self._length_of_row[passages], workers)
        order = np.concatenate(parts)
        position_of = np.argsort(order)
        ends = np.cumsum([len(row) for row in rows])
        positions = np.split(position_of[text_of_T], ends[:-1])
        mine = distribute(self._length_of_query[queries], workers)[worker_rank]
        sizes = [len(part) for part in parts]
        teacher = None
        if self._teacher is not None:
            teacher = [scores[i] for i in mine]
        return TripletBatch(
            queries[mine],
            passages[order],
            [0, *np.cumsum(sizes).tolist()],
            [positions[i] for i in mine],
            teacher,
            len(queries),
        )


class KnownPositives:
    """The positives of all queries with the same text and instructions: none may be a negative of these queries.

    Memory holds 16 bytes for each positive of a query."""

    def __init__(self, hash_P: np.ndarray, row_P: np.ndarray) -> None:
        """hash_P, row_P: for each positive, the hash of its query (`hash_queries`) and its corpus row, int64."""
        order = np.argsort(hash_P, kind="stable")
        self._hash_P = hash_P[order]
        self._row_P = row_P[order]

    @classmethod
    def read(cls, queries: Path, corpus: DocumentRows, corpus_name: Path) -> "KnownPositives":
        """Read shards of queries, one at a time. Raises DataError as `find_corpus_rows` does."""
        hashes = []
        rows = []
        for path in list_shards(queries):
            shard = read_queries(path)
            ends, own = find_corpus_rows(shard, "positives", corpus, path, corpus_name)
            hashes.append(np.repeat(hash_queries(shard), np.diff(ends)))
            rows.append(own)
        return cls(np.concatenate(hashes), np.concatenate(rows))

    def list_rows(self) -> np.ndarray:
        """Return the corpus rows of all positives, int64, rising."""
        return np.unique(self._row_P)

    def find(self, query: int) -> np.ndarray:
        """Return the corpus rows of the positives of all queries with the hash `query`."""
        first = np.searchsorted(self._hash_P, query, "left")
        return self._row_P[first : np.searchsorted(self._hash_P, query, "right")]


@lru_cache(maxsize=1)
def split_epoch(rows: int, batches: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Shuffle the rows of an epoch, and split them into nearly equal batches, int64 each."""
    random = np.random.default_rng([seed, epoch])
    return np.array_split(random.permutation(rows), batches)


def _split_sources(queries: pa.Table, weights: Mapping[str, float]) -> list[tuple[np.ndarray, int]]:
    """Return the rows of each source, int64, and how many are used per epoch. Synthetic queries are a source."""
    names = np.array([""] * len(queries))
    if "source" in queries.column_names:
        names = queries["source"].fill_null("").to_numpy()
    known = sorted(set(names.tolist()))
    if len(known) < 2:
        raise DataError(
            "batch_by: source given, for queries of one data set; expected queries of several; give several paths, or"
            " leave batch_by out"
        )
    for name in weights:
        if name not in known:
            raise DataError(
                f"source_weights: {name} given; expected some of {', '.join(known)} (the name of a data set, or its"
                " number from 0); correct it"
            )
    sources = []
    for name in known:
        rows = np.flatnonzero(names == name)
        sources.append((rows, max(1, round(weights.get(name, 1.0) * len(rows)))))
    return sources


def distribute(lengths: Sequence[int] | np.ndarray, workers: int) -> list[np.ndarray]:
    """Distribute rows over workers in turn, longest first: all get about as many rows of each length."""
    order = np.argsort(-np.asarray(lengths, np.int64), kind="stable")
    return [order[worker::workers] for worker in range(workers)]


def find_corpus_rows(
    table: pa.Table,
    column: str,
    corpus: DocumentRows,
    where: str | Path = "mined",
    corpus_name: str | Path = "the corpus",
) -> tuple[np.ndarray, np.ndarray]:
    """Return (the offsets of the lists in a column of ids, int64 [Q + 1]; the corpus rows of all ids, flat, int64).

    Raises DataError, with `where` and `corpus_name`, for an id that is not in the corpus."""
    names = pc.list_flatten(table[column])
    rows = corpus.find(names)
    sizes = pc.fill_null(pc.list_value_length(table[column]), 0).to_numpy()
    offsets = np.r_[0, np.cumsum(sizes)].astype(np.int64)
    if (rows < 0).any():
        first = int(np.argmin(rows))
        row = int(np.searchsorted(offsets, first, "right")) - 1
        raise DataError(
            f"{where}: row {row}: {column.removesuffix('s')} '{names[first]}' is not in {corpus_name}; expected a"
            " document's id; use the corpus of these rows"
        )
    return offsets, rows


def find_own_rows(queries: pa.Table, corpus: DocumentRows) -> np.ndarray:
    """Return the corpus row with the id of each query, int64 [Q]; -1 if there is none, or if it is a positive.

    If queries are documents (ArguAna, Quora), the row is the query itself. As in BEIR, it is neither ranked nor a
    negative."""
    own_Q = corpus.find(queries["id"])
    for q in np.flatnonzero(own_Q >= 0).tolist():
        positives = queries["positives"][q].as_py()
        if queries["id"][q].as_py() in positives:
            own_Q[q] = -1
    return own_Q


def pad_rows(rows: Sequence[np.ndarray], fill_value: float) -> np.ndarray:
    """Stack rows of different lengths into one array, padded on the right."""
    length = max(map(len, rows))
    padded = np.full((len(rows), length), fill_value, rows[0].dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def _average_lists(scores: np.ndarray, ends_Q: np.ndarray) -> np.ndarray:
    """Return the mean of each list of a flat array, float64 [Q]; NaN for an empty one. ends_Q: offsets of the lists."""
    size_Q = np.diff(ends_Q)
    query = np.repeat(np.arange(len(size_Q)), size_Q)
    sum_Q = np.bincount(query, scores, len(size_Q))
    return sum_Q / np.where(size_Q, size_Q, np.nan)


def _read_teacher_scores(mined: pa.Table, ids: str, count: int) -> np.ndarray:
    """Return the teacher scores beside a column of ids, flat, float32. count: the number of ids."""
    column = TEACHER_SCORES[ids]
    if column not in mined.column_names:
        raise DataError(
            f"mined: has no column {column}; expected the scores of a reranker; run `rerank` on it first"
        )
    flat = pc.list_flatten(mined[column]).to_numpy().astype(np.float32)
    if len(flat) != count or not np.isfinite(flat).all():
        raise DataError(
            f"mined: {np.isfinite(flat).sum()} finite {column} for {count} {ids}; expected one each; run `rerank`"
        )
    return flat
