"""Mines hard negatives for shards of queries."""

from __future__ import annotations

import heapq
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.formats.flag_embedding import make_line, write_lines
from ratchet.data.negatives import Window, choose_negatives
from ratchet.data.tables import (
    MINED,
    Texts,
    add_carried,
    hash_texts,
    list_shards,
    read_queries,
    read_shards,
    write_table,
)
from ratchet.data.triplets import find_corpus_rows, find_own_rows
from ratchet.data.vectors import group_blocks, read_blocks, read_dim, read_vectors
from ratchet.errors import InputError
from ratchet.jobs.distributed.shard_map import ReportProgress, count_rows, map_shards
from ratchet.jobs.retrieval.mine import Config, Inputs
from ratchet.models.search.ranks import Relevant, score_relevant
from ratchet.models.search.top_k import merge_top_k, top_k
from ratchet.orchestrator.job_interface import Context, Result

BYTES_AT_ONCE = 1 << 30
"""Bytes of corpus vectors that a worker holds at a time. Larger corpora are searched in parts and merged."""

NUM_CASES = 3
"""Queries shown in the report with their negatives."""


class Worker:
    """Mines negatives for shards of queries. Holds the ids of the corpus, and its vectors unless they are large."""

    def __init__(self, config: Config, inputs: Inputs, device: str) -> None:
        table = read_shards(inputs.corpus, ["id", "text"])
        self.text_N = hash_texts(table["text"])
        self.config, self.inputs, self.device = config, inputs, device
        names = [field.name for field in fields(Window)[2:]]
        self.window = Window(*config.window, **{name: getattr(config, name) for name in names})
        self.table, self.ids = table.select(["id"]), table["id"].combine_chunks()
        self.rows_at_once = max(1, BYTES_AT_ONCE // (4 * read_dim(inputs.corpus_embeddings)))
        held = len(self.ids) <= self.rows_at_once
        self.held = list(read_blocks(inputs.corpus_embeddings, self.ids)) if held else None
        self.candidates = find_candidates(config, inputs, self.table)

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        shard = read_queries(source)
        queries, own_Q = shard.to_pylist(), find_own_rows(shard, self.table)
        vectors = self.inputs.query_embeddings / f"{source.stem}.arrow"
        query_QD = read_vectors(vectors, shard["id"].combine_chunks())
        text_Q = hash_texts(shard["text"])
        positives = Relevant(*find_corpus_rows(shard, "positives", self.table, str(source), self.inputs.corpus))
        if len(bad_q := np.flatnonzero(np.diff(positives.indptr) == 0)):
            raise InputError(
                f"{source}: row {bad_q[0]}, query '{queries[bad_q[0]]['id']}': no positive given; expected at least"
                " one; remove the query from the training data"
            )
        scores_QK, rows_QK, positive_scores = self._ranked(query_QD, positives)
        chosen = []
        for q, query in enumerate(queries):
            relevant = positives.indices[positives.indptr[q] : positives.indptr[q + 1]]
            own = own_Q[q : q + 1][own_Q[q : q + 1] >= 0]
            forbidden = {*self.text_N[relevant].tolist(), *self.text_N[own].tolist(), int(text_Q[q])}
            best = float(positive_scores[q].max())
            chosen.append(
                choose_negatives(
                    self.window,
                    rows_QK[q],
                    scores_QK[q],
                    best,
                    forbidden,
                    self.text_N,
                    self.config.seed,
                    query["id"],
                    self.candidates,
                )
            )
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
        ids, scores = (MINED.field(name).type for name in ("negatives", "negative_scores"))
        columns = [("random_fill", pa.int32()), ("suspects", ids), ("suspect_scores", scores)]
        schema = add_carried(pa.schema([*MINED, *columns]), shard.column_names)
        write_table(target, pa.Table.from_pylist(rows, schema=schema))
        return {
            "rows": len(rows),
            "negatives": sum(len(c.rows) for c in chosen),
            "random_fill": sum(c.random_fill for c in chosen),
            "suspects": sum(len(c.suspects) for c in chosen),
        }

    def _ranked(self, query_QD: np.ndarray, positives: Relevant) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Return scores [Q, K] and rows [Q, K] of the best candidates, and the scores of each query's positives."""
        best, found_R = [], np.full(len(positives.indices), np.nan, np.float32)
        for group in self._groups():
            found_R = np.fmax(found_R, score_relevant(query_QD, positives, group))
            if ranked := self._choose(group):
                best.append(top_k(query_QD, ranked, self.window.hi, device=self.device))
        scores_QK, rows_QK = merge_top_k(best, self.window.hi)
        rows_QK = rows_QK if self.candidates is None else self.candidates[rows_QK]
        return scores_QK, rows_QK, np.split(found_R, positives.indptr[1:-1])

    def _choose(self, group: list[tuple[int, np.ndarray]]) -> list[tuple[int, np.ndarray]]:
        """Return the vectors of the candidates among some blocks. Their rows are indices into the candidates."""
        if self.candidates is None:
            return group
        found = []
        for first, block_ND in group:
            start, stop = np.searchsorted(self.candidates, [first, first + len(block_ND)])
            if start < stop:
                found.append((int(start), block_ND[self.candidates[start:stop] - first]))
        return found

    def _scores(
        self, query_QD: np.ndarray, wanted: list[np.ndarray], rows_QK: np.ndarray, scores_QK: np.ndarray
    ) -> list[list[float]]:
        """Return the similarities of the wanted rows of each query. Those outside the ranking are computed."""
        known = [
            dict(zip(rows.tolist(), scores.tolist(), strict=True))
            for rows, scores in zip(rows_QK, scores_QK, strict=True)
        ]
        others = [[row for row in rows.tolist() if row not in known[q]] for q, rows in enumerate(wanted)]
        if any(others):
            pairs = Relevant.from_lists(others)
            found_R = score_relevant(query_QD, pairs, itertools.chain.from_iterable(self._groups()))
            for q, row, score in zip(pairs.query_R.tolist(), pairs.indices.tolist(), found_R.tolist(), strict=True):
                known[q][row] = score
        return [[known[q][row] for row in rows.tolist()] for q, rows in enumerate(wanted)]

    def _groups(self) -> Iterable[list[tuple[int, np.ndarray]]]:
        if self.held is not None:
            return [self.held]
        return group_blocks(read_blocks(self.inputs.corpus_embeddings, self.ids), self.rows_at_once)


def find_candidates(config: Config, inputs: Inputs, corpus: pa.Table) -> np.ndarray | None:
    """Return the corpus rows that may be negatives, int64, rising. None: all."""
    if config.candidates == "corpus":
        return None
    labelled = np.unique(find_corpus_rows(read_shards(inputs.queries), "positives", corpus)[1])
    return labelled if config.candidates == "labelled" or len(labelled) >= len(corpus) / 4 else None


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    shards = list_shards(inputs.queries)
    total = count_rows(shards, ["id", "text", "positives"])
    arguments = {"config": config, "inputs": inputs, "device": "cuda" if context.resources.gpus else "cpu"}
    counts = map_shards(context, shards, Worker, arguments, context.out, total_rows=total)
    positive, negative, hardest = write_jsonl(context.out, Texts(read_shards(inputs.corpus)))
    corpus = read_shards(inputs.corpus, ["id"])
    candidates = find_candidates(config, inputs, corpus)
    return Result(
        {
            "queries": total,
            "candidates": len(corpus) if candidates is None else len(candidates),
            "negatives": counts["negatives"],
            "random_fill": counts["random_fill"],
            "suspected_false_negatives": counts["suspects"],
            "positive_similarity": positive,
            "negative_similarity": negative,
        },
        cases={"negatives that are most similar to their query compared with the positives": hardest},
    )


def write_jsonl(folder: Path, text_of: Mapping[str, str]) -> tuple[float, float, list[dict[str, Any]]]:
    """Write the mined shards as FlagEmbedding JSONL, and the suspects. Return the mean similarities of the positives
    and of the negatives, and the cases of the hardest queries."""
    sums = [0.0, 0, 0.0, 0]
    hardest: list[tuple[float, int, dict[str, Any]]] = []
    number = 0

    def lines() -> Iterable[dict[str, Any]]:
        nonlocal number
        for path in list_shards(folder):
            for row in pq.read_table(path).to_pylist():
                number += 1
                sums[0] += sum(row["positive_scores"])
                sums[1] += len(row["positive_scores"])
                sums[2] += sum(row["negative_scores"])
                sums[3] += len(row["negative_scores"])
                if row["negatives"]:
                    margin = max(row["negative_scores"]) - max(row["positive_scores"])
                    heapq.heappush(hardest, (margin, -number, row))
                    if len(hardest) > NUM_CASES:
                        heapq.heappop(hardest)
                if row["suspects"]:
                    suspects.write(json.dumps(_suspects_line(row, text_of), ensure_ascii=False) + "\n")
                yield make_line(row, text_of)

    with (folder / "suspects.jsonl").open("w", encoding="utf-8") as suspects:
        write_lines(folder / "flag_embedding.jsonl", lines())
    cases = [_make_case(row, text_of) for _, _, row in sorted(hardest, key=lambda item: (-item[0], -item[1]))]
    return round(sums[0] / max(1, sums[1]), 6), round(sums[2] / max(1, sums[3]), 6), cases


def _suspects_line(row: dict[str, Any], text_of: Mapping[str, str]) -> dict[str, Any]:
    """Return a line of suspects.jsonl: unlabelled documents that are too similar to the query for a negative."""
    return {
        "query_id": row["id"],
        "query": row["text"],
        "positives": [text_of[name] for name in row["positives"]],
        "positive_similarity": round(max(row["positive_scores"]), 6),
        "suspects": [
            {"id": name, "text": text_of[name], "similarity": round(score, 6)}
            for name, score in zip(row["suspects"], row["suspect_scores"], strict=True)
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
