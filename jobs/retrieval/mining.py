"""Hard negatives for shards of queries: the workers of `mine`."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.data import tables
from ratchet.data.formats.flag_embedding import make_line
from ratchet.data.negatives import Window, choose_negatives
from ratchet.data.triplets import KnownPositives, find_corpus_rows, find_own_rows
from ratchet.data.vectors import read_blocks, read_dim, read_vectors, take_rows
from ratchet.errors import InputError
from ratchet.jobs.distributed.shard_map import ReportProgress
from ratchet.models.search.inverted_lists import (
    VECTORS_PER_LIST,
    build_lists,
    choose_probes,
    count_lists,
    search_lists,
)
from ratchet.models.search.ranks import Relevant, score_relevant
from ratchet.models.search.top_k import top_k

if TYPE_CHECKING:
    from ratchet.jobs.retrieval.mine import Config, Inputs

BYTES_AT_ONCE = 1 << 30
"""Bytes of vectors that a worker holds in memory from one shard of queries to the next."""

SAMPLE = 256
"""Number of queries in the sample that measures the recall of an approximate search."""

NUM_CASES = 3
"""Number of queries that the report shows with their negatives."""


class Candidates:
    """Vectors of the documents that may be negatives. They stay in memory only if they have at most BYTES_AT_ONCE."""

    def __init__(self, config: Config, inputs: Inputs) -> None:
        self.inputs = inputs
        self.folder = inputs.corpus_embeddings
        self.ids = tables.read_shards(inputs.corpus, ["id"])["id"].combine_chunks()
        whole = config.candidates == "corpus"
        if whole:
            self.rows = None
        else:
            self.rows = choose_candidates(config, self.known.list_rows(), len(self.ids))
        """Corpus rows of the candidates, int64, ascending. None: all."""
        self.fits = 4 * len(self) * read_dim(self.folder) <= BYTES_AT_ONCE
        self.held: list[tuple[int, np.ndarray]] = []

    def __len__(self) -> int:
        return len(self.ids if self.rows is None else self.rows)

    @cached_property
    def corpus(self) -> tables.DocumentRows:
        return tables.DocumentRows(pa.chunked_array([self.ids]))

    @cached_property
    def known(self) -> KnownPositives:
        return KnownPositives.read(self.inputs.queries, self.corpus, self.inputs.corpus)

    def search(self, query_QD: np.ndarray, k: int, device: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (scores, candidate indices) of the best candidates by exact search, both [Q, K]."""
        if self.fits and not self.held:
            self.held = list(self.read())
        return top_k(query_QD, self.held or self.read(), k, device=device)

    def read(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the vectors of the candidates, as (index of the first candidate, [n, D] float32)."""
        for first, block_ND in read_blocks(self.folder, self.ids):
            if self.rows is None:
                yield first, block_ND
                continue
            start, stop = np.searchsorted(self.rows, [first, first + len(block_ND)]).tolist()
            if start < stop:
                yield start, block_ND[self.rows[start:stop] - first]


class IndexBuilder:
    """Writes an index of the candidates that has the recall `min_recall` on a sample of queries."""

    def __init__(self, config: Config, inputs: Inputs, device: str) -> None:
        self.config = config
        self.inputs = inputs
        self.device = device
        self.candidates = Candidates(config, inputs)
        self.read = 0
        self.queries = tables.read_shards(inputs.queries, ["id"])["id"].combine_chunks()

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        seed = self.config.seed
        lists = count_lists(len(self.candidates))
        trained = draw(len(self.candidates), VECTORS_PER_LIST * lists, seed)
        sample_SD = take_rows(self.candidates.read(), trained)
        index = build_lists(sample_SD, self._read(report), lists, seed)
        queries = read_blocks(self.inputs.query_embeddings, self.queries, mapped=True)
        query_QD = take_rows(queries, draw(len(self.queries), SAMPLE, seed))
        nearest_QKD = self._find_nearest(query_QD)
        found, expected = choose_probes(index, query_QD, nearest_QKD, self.config.min_recall or 1.0)
        faiss.write_index(index, str(target))
        return {"rows": len(self.candidates), "found": found, "expected": expected}

    def _find_nearest(self, query_QD: np.ndarray) -> np.ndarray:
        """Return the vectors of the nearest candidates by exact search, [Q, K, D]."""
        rows_QK = self.candidates.search(query_QD, self.config.window[1], self.device)[1]
        if self.candidates.rows is not None:
            rows_QK = self.candidates.rows[rows_QK]
        row_n, place_QK = np.unique(rows_QK, return_inverse=True)
        nearest_nD = take_rows(
            read_blocks(self.candidates.folder, self.candidates.ids, mapped=True), row_n
        )
        return nearest_nD[place_QK]

    def _read(self, report: ReportProgress) -> Iterator[np.ndarray]:
        for _, block_ND in self.candidates.read():
            yield block_ND
            self.read += len(block_ND)
            report(self.read)


def draw(number: int, most: int, seed: int) -> np.ndarray:
    """Draw at most `most` of the integers 0 to `number` - 1, in ascending order."""
    return np.sort(np.random.default_rng(seed).permutation(number)[:most])


class Worker:
    """Mines negatives for shards of queries. index: file of `IndexBuilder`. None: exact search."""

    def __init__(
        self, config: Config, inputs: Inputs, device: str, index: Path | None = None
    ) -> None:
        self.text_N = tables.hash_shards(inputs.corpus)
        self.config = config
        self.inputs = inputs
        self.device = device
        names = [field.name for field in fields(Window)[2:]]
        self.window = Window(*config.window, **{name: getattr(config, name) for name in names})
        self.candidates = Candidates(config, inputs)
        self.ids = self.candidates.ids
        self.corpus = self.candidates.corpus
        if index is None:
            self.index = None
        else:
            self.index = faiss.read_index(str(index), faiss.IO_FLAG_MMAP)

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        shard = tables.read_queries(source)
        queries = shard.to_pylist()
        own_Q = find_own_rows(shard, self.corpus)
        vectors = self.inputs.query_embeddings / f"{source.stem}.arrow"
        query_QD = read_vectors(vectors, shard["id"].combine_chunks())
        text_Q = tables.hash_texts(shard["text"])
        hash_Q = tables.hash_queries(shard)
        positives = Relevant(
            *find_corpus_rows(shard, "positives", self.corpus, str(source), self.inputs.corpus)
        )
        if len(bad_q := np.flatnonzero(np.diff(positives.indptr) == 0)):
            raise InputError(
                f"{source}: row {bad_q[0]}, query '{queries[bad_q[0]]['id']}': no positive given; expected at least"
                " one; remove the query from the training data"
            )
        scores_QK, rows_QK, positive_scores = self._ranked(query_QD, positives)
        chosen = []
        for q, query in enumerate(queries):
            relevant = self.candidates.known.find(hash_Q[q])
            own = own_Q[q : q + 1][own_Q[q : q + 1] >= 0]
            forbidden = {
                *self.text_N[relevant].tolist(),
                *self.text_N[own].tolist(),
                int(text_Q[q]),
            }
            best = float(positive_scores[q].max())
            drawn_by = forbidden, self.text_N, self.config.seed, query["id"], self.candidates.rows
            chosen.append(choose_negatives(self.window, rows_QK[q], scores_QK[q], best, *drawn_by))
            report(q + 1)
        negative_scores = self._scores(query_QD, [c.rows for c in chosen], rows_QK, scores_QK)
        suspect_scores = self._scores(query_QD, [c.suspects for c in chosen], rows_QK, scores_QK)
        rows = [
            {
                **query,
                "negatives": self.ids.take(pa.array(chosen[q].rows)).to_pylist(),
                "positive_scores": positive_scores[q].tolist(),
                "negative_scores": negative_scores[q],
                "random_fill": chosen[q].random_fill,
                "suspects": self.ids.take(pa.array(chosen[q].suspects)).to_pylist(),
                "suspect_scores": suspect_scores[q],
            }
            for q, query in enumerate(queries)
        ]
        columns = [
            ("random_fill", pa.int32()),
            ("suspects", tables.IDS),
            ("suspect_scores", tables.SCORES),
        ]
        schema = tables.add_carried(pa.schema([*tables.MINED, *columns]), shard.column_names)
        tables.write_table(target, pa.Table.from_pylist(rows, schema=schema))
        return {
            "rows": len(rows),
            "negatives": sum(len(c.rows) for c in chosen),
            "random_fill": sum(c.random_fill for c in chosen),
            "suspects": sum(len(c.suspects) for c in chosen),
        }

    def _ranked(
        self, query_QD: np.ndarray, positives: Relevant
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Return scores and rows of the best candidates, both [Q, K], and the scores of each query's positives."""
        positive_R = self._score(query_QD, positives)
        if self.index is None:
            scores_QK, rows_QK = self.candidates.search(query_QD, self.window.hi, self.device)
        else:
            rows_QK = search_lists(self.index, query_QD, self.window.hi)
        if self.candidates.rows is not None:
            rows_QK = self.candidates.rows[rows_QK]
        if self.index is not None:
            scores_QK, rows_QK = self._order(query_QD, rows_QK)
        return scores_QK, rows_QK, np.split(positive_R, positives.indptr[1:-1])

    def _order(self, query_QD: np.ndarray, rows_QK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the exact scores of each query's documents and these in the order of `top_k`, both [Q, K]."""
        pairs = Relevant(np.arange(len(rows_QK) + 1) * rows_QK.shape[1], rows_QK.ravel())
        scores_QK = self._score(query_QD, pairs).reshape(rows_QK.shape)
        order_QK = np.lexsort((rows_QK, -scores_QK), axis=1)
        return np.take_along_axis(scores_QK, order_QK, axis=1), np.take_along_axis(
            rows_QK, order_QK, axis=1
        )

    def _score(self, query_QD: np.ndarray, pairs: Relevant) -> np.ndarray:
        return score_relevant(
            query_QD, pairs, read_blocks(self.candidates.folder, self.ids, mapped=True)
        )

    def _scores(
        self,
        query_QD: np.ndarray,
        wanted: list[np.ndarray],
        rows_QK: np.ndarray,
        scores_QK: np.ndarray,
    ) -> list[list[float]]:
        """Return the similarities of each query's `wanted` rows; they are computed for rows outside the ranking."""
        known = []
        for rows, scores in zip(rows_QK, scores_QK, strict=True):
            known.append(dict(zip(rows.tolist(), scores.tolist(), strict=True)))
        others = [
            [row for row in rows.tolist() if row not in known[q]] for q, rows in enumerate(wanted)
        ]
        if any(others):
            pairs = Relevant.from_lists(others)
            found_R = self._score(query_QD, pairs)
            for q, row, score in zip(
                pairs.query_R.tolist(), pairs.indices.tolist(), found_R.tolist(), strict=True
            ):
                known[q][row] = score
        return [[known[q][row] for row in rows.tolist()] for q, rows in enumerate(wanted)]


def choose_candidates(config: Config, labelled: np.ndarray, documents: int) -> np.ndarray | None:
    """Return the corpus rows that may be negatives, int64, ascending. None: all. labelled: rows of all positives."""
    if config.candidates == "labelled":
        return labelled
    many = len(labelled) >= documents / 4 and len(labelled) > config.num_negatives
    if many:
        return labelled
    return None


def write_jsonl(folder: Path, corpus: Path) -> tuple[float, float, list[dict[str, Any]]]:
    """Write the mined shards as FlagEmbedding JSONL, and `suspects.jsonl`. Return the mean similarity of the positives,
    the mean similarity of the negatives, and the cases of the hardest queries."""
    text_of = tables.read_texts(corpus, tables.read_listed(folder))
    rows = (row for path in tables.list_shards(folder) for row in pq.read_table(path).to_pylist())

    def write() -> Iterator[tuple[float, int, dict[str, Any]]]:
        """Write the lines. Yield (best negative's similarity minus best positive's, -row number, row) per query."""
        for number, row in enumerate(rows):
            lines.write(json.dumps(make_line(row, text_of.find), ensure_ascii=False) + "\n")
            if row["suspects"]:
                suspects.write(json.dumps(_suspects_line(row, text_of), ensure_ascii=False) + "\n")
            if row["negatives"]:
                yield max(row["negative_scores"]) - max(row["positive_scores"]), -number, row

    paths = (folder / "flag_embedding.jsonl", folder / "suspects.jsonl")
    with (
        paths[0].open("w", encoding="utf-8") as lines,
        paths[1].open("w", encoding="utf-8") as suspects,
    ):
        cases = [_make_case(row, text_of) for *_, row in heapq.nlargest(NUM_CASES, write())]
    scores = tables.read_shards(folder, ["positive_scores", "negative_scores"]).columns
    positive, negative = (
        round(pc.mean(pc.list_flatten(column)).as_py() or 0.0, 6) for column in scores
    )
    return positive, negative, cases


def _suspects_line(row: dict[str, Any], text_of: tables.Texts) -> dict[str, Any]:
    """Return a line of suspects.jsonl: the suspected false negatives of a query."""
    suspects = zip(
        row["suspects"], text_of.find(row["suspects"]), row["suspect_scores"], strict=True
    )
    return {
        "query_id": row["id"],
        "query": row["text"],
        "positives": text_of.find(row["positives"]),
        "positive_similarity": round(max(row["positive_scores"]), 6),
        "suspects": [
            {"id": name, "text": text, "similarity": round(score, 6)}
            for name, text, score in suspects
        ],
    }


def _make_case(row: dict[str, Any], text_of: Mapping[str, str]) -> dict[str, Any]:
    ranked = sorted(zip(row["negative_scores"], row["negatives"], strict=True), reverse=True)[:5]
    return {
        "title": row["text"],
        "columns": {
            "positives": [{"text": text_of[name], "good": True} for name in row["positives"]],
            "negatives": [{"text": text_of[name], "good": False} for _, name in ranked],
        },
    }
