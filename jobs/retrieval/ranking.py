"""Rankings of the corpus for shards of queries, and their metrics: the work of `evaluate_retrieval`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.sparse import csr_matrix

from ratchet.data.lexical_baselines import BM25
from ratchet.data.rankings import reorder
from ratchet.data.significance import list_half_widths
from ratchet.data.tables import (
    RANKED,
    DocumentRows,
    add_carried,
    list_shards,
    read_queries,
    read_shards,
    read_texts,
    write_table,
)
from ratchet.data.triplets import find_corpus_rows, find_own_rows
from ratchet.data.vectors import read_blocks, read_vectors
from ratchet.errors import InputError
from ratchet.jobs.distributed.shard_map import ReportProgress
from ratchet.models.search.nearest_queries import vote
from ratchet.models.search.rank_metrics import RankMetrics
from ratchet.models.search.ranks import Relevant, rank_and_search, rank_in_blocks
from ratchet.models.search.top_k import top_k

if TYPE_CHECKING:
    from ratchet.jobs.retrieval.evaluate_retrieval import Config, Inputs

WITH_INTERVAL = ("map@25", "r@25", "ndcg@10", "mrr", "map")
"""Metrics whose 95 % confidence interval is reported too, as its half width, such as `map@25/interval`."""


"""Metrics in the table "metrics by dimensions"."""


class Worker:
    """Ranks the corpus for shards of queries. Large corpus vectors are read in blocks.

    Writes `ratchet.data.tables.RANKED`. The ranks of a query are in the order of its positives."""

    def __init__(self, config: Config, inputs: Inputs, device: str) -> None:
        self.config = config
        self.inputs = inputs
        self.device = device
        table = read_shards(inputs.corpus, ["id", "text"] if config.system == "bm25" else ["id"])
        self.corpus = DocumentRows(table["id"])
        self.ids: pa.Array = table["id"].combine_chunks()
        self.bm25: BM25 | None = None
        if config.system == "bm25":
            self.bm25 = BM25(table["text"].to_pylist())
        if config.system == "knn" and inputs.train:
            train = read_shards(inputs.train, ["id", "positives"])
            self.train_ids: pa.Array = train["id"].combine_chunks()
            self.labels = Relevant(
                *find_corpus_rows(train, "positives", self.corpus, "train", inputs.corpus)
            )

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        shard = read_queries(source)
        queries = shard.to_pylist()
        own_Q = find_own_rows(shard, self.corpus)
        relevant = Relevant(
            *find_corpus_rows(shard, "positives", self.corpus, str(source), self.inputs.corpus)
        )
        unscored = 0
        top = self.config.top
        if self.bm25:
            texts = shard["text"].to_pylist()
            score = self.bm25.score
            ranks_R, scores_QK, rows_QK = rank_in_blocks(
                lambda some: score(texts[some]), len(self.ids), relevant, own_Q, top, report
            )
            unscored = int((scores_QK.max(1, initial=0.0) <= 0).sum())
        else:
            assert self.inputs.query_embeddings is not None
            vectors = self.inputs.query_embeddings / f"{source.stem}.arrow"
            query_QD = read_vectors(vectors, shard["id"].combine_chunks())
            if self.config.system == "knn":
                votes_QN = self._vote(query_QD)
                ranks_R, scores_QK, rows_QK = rank_in_blocks(
                    lambda some: votes_QN[some].toarray(),
                    len(self.ids),
                    relevant,
                    own_Q,
                    top,
                    report,
                )
            else:
                ranks_R, scores_QK, rows_QK = rank_and_search(
                    query_QD, relevant, self._read_blocks, top, exclude_Q=own_Q, device=self.device
                )
        kept = []
        for rows, own in zip(rows_QK, own_Q, strict=True):
            kept.append(np.flatnonzero(rows != own))
        ranks_of = np.split(ranks_R, relevant.indptr[1:-1])[: len(queries)]
        ranked = []
        for query, rows, scores, at, ranks in zip(
            queries, rows_QK, scores_QK, kept, ranks_of, strict=True
        ):
            ranked.append(
                {
                    **query,
                    "documents": self.ids.take(pa.array(rows[at])).to_pylist(),
                    "scores": scores[at],
                    "ranks": ranks,
                }
            )
        table = pa.Table.from_pylist(ranked, schema=add_carried(RANKED, shard.column_names))
        write_table(target, table)
        return {"rows": len(queries), "unscored": unscored}

    def _vote(self, query_QD: np.ndarray) -> csr_matrix:
        """Return the votes of the nearest training queries for all documents, [Q, N]."""
        assert self.inputs.train_embeddings is not None
        blocks = read_blocks(self.inputs.train_embeddings, self.train_ids)
        nearest = top_k(query_QD, blocks, self.config.neighbors + 1, device=self.device)
        return vote(*nearest, self.labels, len(self.ids))

    def _read_blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield blocks of the corpus vectors, as (row of the first, [n, D])."""
        assert self.inputs.corpus_embeddings is not None
        return read_blocks(self.inputs.corpus_embeddings, self.ids, mapped=True)


def write_reranked(config: Config, inputs: Inputs, queries: pa.Table, target: Path) -> None:
    assert inputs.scored is not None
    schema = add_carried(RANKED, pq.read_schema(list_shards(inputs.scored)[0]).names)
    table = read_shards(inputs.scored, [*schema.names, "teacher_scores"])
    if table["id"].to_pylist() != queries["id"].to_pylist():
        raise InputError(
            f"{inputs.scored}: ranks other queries; expected those of {inputs.queries} in the same order"
        )
    rows = []
    for row, positives in zip(table.to_pylist(), queries["positives"].to_pylist(), strict=True):
        scores = np.array(row["teacher_scores"], np.float32)
        order, ranks = reorder(row["documents"], scores, positives, row["ranks"])
        documents = [row["documents"][i] for i in order]
        rows.append(
            row
            | {
                "documents": documents[: config.top],
                "scores": scores[order][: config.top],
                "ranks": ranks,
            }
        )
    write_table(
        target / list_shards(inputs.scored)[0].name, pa.Table.from_pylist(rows, schema=schema)
    )


def list_scalars(metrics: RankMetrics) -> dict[str, float | int | str]:
    rounded = {}
    for name, value in metrics.values.items():
        rounded[name] = round(float(value), 6)
    order = ["map@25", "r@25", "mrr", "map"]
    first = {}
    for name in order:
        if name in rounded:
            first[name] = rounded[name]
    about = {"queries": metrics.queries, "queries_without_relevant": metrics.empty}
    return {
        **first,
        **rounded,
        **about,
        **{f"first_rank/{k}": round(v, 2) for k, v in metrics.ranks.items()},
    }


def compute_by_seen(
    metrics: RankMetrics, seen_Q: np.ndarray, group_Q: np.ndarray
) -> dict[str, float | int | str]:
    """Return the metrics of seen and unseen queries separately, such as `seen/map@25`. If there are no seen (or unseen)
    queries, their metrics are left out. Queries without a relevant document do not count, as in the other metrics."""
    found: dict[str, float | int | str] = {}
    for group, own_Q in (("seen", seen_Q), ("unseen", ~seen_Q)):
        own_Q = own_Q & ~np.isnan(metrics.per_query["mrr"])
        if own_Q.any():
            values = {}
            for name, value_Q in metrics.per_query.items():
                values[name] = value_Q[own_Q]
            found |= {f"{group}/queries": int(own_Q.sum())}
            found |= {
                f"{group}/{name}": round(float(value_q.mean()), 6)
                for name, value_q in values.items()
            }
            found |= list_half_widths(values, WITH_INTERVAL, group_Q[own_Q], f"{group}/")
    return found


def show_cases(
    config: Config,
    inputs: Inputs,
    queries: pa.Table,
    first: list[int | None],
    shown: list[list[str]],
) -> dict[str, list[dict[str, Any]]]:
    """Return cases of the queries whose first relevant document rose or fell most since the evaluation `before`."""
    if inputs.before is None or not config.num_cases:
        return {}
    before = pq.read_table(inputs.before / "per_query.parquet", columns=["id", "first_rank", "top"])
    if before["id"].to_pylist() != queries["id"].to_pylist():
        raise InputError(
            f"{inputs.before}: evaluates other queries; expected those of {inputs.queries}"
        )
    ranks = before["first_rank"].to_pylist()
    tops = pc.list_slice(before["top"], 0, config.case_documents).to_pylist()
    # By ratio, so that 40 -> 2 counts more than 400 -> 300.
    pairs = []
    for q, (old, new) in enumerate(zip(ranks, first, strict=True)):
        if old and new and old != new:
            pairs.append((old / new, q))
    if not pairs:
        return {}  # without reading the corpus
    worst = [q for ratio, q in sorted(pairs) if ratio < 1][: max(1, config.num_cases // 3)]
    rose = [q for ratio, q in sorted(pairs, key=lambda pair: (-pair[0], pair[1])) if ratio > 1]
    better = rose[: max(1, config.num_cases - len(worst))]
    named = []
    for q in (*better, *worst):
        named += [*tops[q], *shown[q]]
    text_of = read_texts(inputs.corpus, pa.chunked_array([named], pa.string()))

    def make_case(q: int) -> dict[str, Any]:
        right = set(queries["positives"][q].as_py())
        columns = {
            f"before: answer at rank {ranks[q]}": tops[q],
            f"{config.tag}: answer at rank {first[q]}": shown[q],
        }
        cards: dict[str, list[dict[str, Any]]] = {}
        for title, names in columns.items():
            cards[title] = []
            for name, text in zip(names, text_of.find(names), strict=True):
                cards[title].append({"text": text, "good": name in right})
        return {"title": queries["text"][q].as_py(), "columns": cards}

    found: dict[str, list[dict[str, Any]]] = {}
    for title, chosen in (("answer rose most", better), ("answer fell most", worst)):
        if chosen:
            found[title] = [make_case(q) for q in chosen]
    return found
