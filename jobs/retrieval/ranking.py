"""Rankings of the corpus for shards of queries, and their metrics: the work of `evaluate_retrieval`.

Legend: Q queries, R their relevant documents, K ranked documents of a query, N documents of the corpus, D dimensions.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.lexical_baselines import BM25
from ratchet.data.rankings import reorder, tabulate_ranks
from ratchet.data.significance import list_half_widths
from ratchet.data.tables import (
    RANKED,
    DocumentRows,
    add_carried,
    check_queries,
    list_shards,
    read_queries,
    read_shards,
    read_texts,
    write_table,
)
from ratchet.data.triplets import find_corpus_rows, find_own_rows
from ratchet.data.vectors import read_blocks
from ratchet.jobs.distributed.piece_runner import ReportProgress
from ratchet.jobs.distributed.pieces import Piece
from ratchet.models.search.nearest_queries import vote
from ratchet.models.search.rank_metrics import RankMetrics
from ratchet.models.search.ranks import Relevant, rank_and_search, rank_in_blocks
from ratchet.models.search.top_k import top_k

if TYPE_CHECKING:
    from ratchet.jobs.retrieval.evaluate_retrieval import Config, Inputs


WITH_INTERVAL = ("map@25", "r@25", "ndcg@10", "mrr", "map")
"""Metrics whose 95 % confidence interval is reported too, as its half width, such as `map@25/interval`."""

FIRST = ("map@25", "r@25", "mrr", "map")
"""Metrics that are reported before the others."""

CASES = 6
"""Number of queries that the report shows with their retrieved documents."""
SHOWN = 5
"""Number of documents that it shows per query."""
POINTS = 1000
"""Number of queries in the chart of ranks."""


class Worker:
    """Ranks the corpus for pieces of shards of queries. Large corpus vectors are read in blocks.

    Writes `ratchet.data.tables.RANKED`. The ranks of a query are in the order of its positives."""

    def __init__(self, config: "Config", inputs: "Inputs", device: str) -> None:
        self.config = config
        self.inputs: Any = inputs
        self.device = device
        table = read_shards(inputs.corpus, ["id", "text"] if config.system == "bm25" else ["id"])
        self.corpus = DocumentRows(table["id"])
        self.ids: pa.Array = table["id"].combine_chunks()
        if config.system == "bm25":
            self.bm25 = BM25(table["text"].to_pylist())
        if config.system == "knn" and inputs.train:
            train = read_shards(inputs.train, ["id", "positives"])
            self.train_ids: pa.Array = train["id"].combine_chunks()
            self.labels = Relevant(
                *find_corpus_rows(train, "positives", self.corpus, "train", inputs.corpus)
            )

    def __call__(self, piece: Piece, target: Path, report: ReportProgress) -> dict[str, int]:
        source = piece.source
        whole = read_queries(source)
        shard = piece.take(whole)
        own_Q = find_own_rows(shard, self.corpus)
        relevant = Relevant(
            *find_corpus_rows(shard, "positives", self.corpus, str(source), self.inputs.corpus)
        )
        top = self.config.top
        if self.config.system == "dense":
            read = partial(read_blocks, self.inputs.corpus_embeddings, self.ids, mapped=True)
            query_QD = piece.take_vectors(self.inputs.query_embeddings, whole)
            ranks_R, scores_QK, rows_QK = rank_and_search(
                query_QD, relevant, read, top, exclude_Q=own_Q, device=self.device
            )
        else:
            score = self._make_score(piece, whole)
            ranks_R, scores_QK, rows_QK = rank_in_blocks(
                score, len(self.ids), relevant, own_Q, top, report
            )
        table = tabulate_ranks(shard, self.ids, relevant.indptr, own_Q, ranks_R, scores_QK, rows_QK)
        write_table(target, table)
        unscored = 0
        if self.config.system == "bm25":
            unscored = int((scores_QK.max(1, initial=0.0) <= 0).sum())
        return {"rows": len(shard), "unscored": unscored}

    def _make_score(self, piece: Piece, whole: pa.Table) -> Callable[[slice], np.ndarray]:
        """Return the function that scores all documents, [Q, N], for some of the queries: by BM25, or by the votes of
        the nearest training queries."""
        if self.config.system == "bm25":
            texts = piece.take(whole)["text"].to_pylist()
            return lambda some: self.bm25.score(texts[some])
        blocks = read_blocks(self.inputs.train_embeddings, self.train_ids)
        query_QD = piece.take_vectors(self.inputs.query_embeddings, whole)
        nearest = top_k(query_QD, blocks, self.config.neighbors + 1, device=self.device)
        votes_QN = vote(*nearest, self.labels, len(self.ids))
        return lambda some: votes_QN[some].toarray()


def write_reranked(config: "Config", inputs: "Inputs", queries: pa.Table, target: Path) -> None:
    assert inputs.scored is not None
    first = list_shards(inputs.scored)[0]
    schema = add_carried(RANKED, pq.read_schema(first).names)
    table = read_shards(inputs.scored, [*schema.names, "teacher_scores"])
    check_queries(inputs.scored, table, queries, inputs.queries)
    rows = table.to_pylist()
    for row, positives in zip(rows, queries["positives"].to_pylist(), strict=True):
        scores = np.array(row.pop("teacher_scores"), np.float32)
        order, row["ranks"] = reorder(row["documents"], scores, positives, row["ranks"])
        order = order[: config.top]
        row["documents"] = [row["documents"][i] for i in order]
        row["scores"] = scores[order]
    write_table(target / first.name, pa.Table.from_pylist(rows, schema=schema))


def list_scalars(metrics: RankMetrics) -> dict[str, float]:
    found = {}
    for name in (*FIRST, *metrics.values):
        if name in metrics.values:
            found[name] = round(float(metrics.values[name]), 6)
    found |= {"queries": metrics.queries, "queries_without_relevant": metrics.empty}
    for name, value in metrics.ranks.items():
        found[f"first_rank/{name}"] = round(value, 2)
    return found


def compute_by_seen(
    metrics: RankMetrics, seen_Q: np.ndarray, group_Q: np.ndarray
) -> dict[str, float]:
    """Return the metrics of seen and unseen queries separately, such as `seen/map@25`. If there are no seen (or unseen)
    queries, their metrics are left out. Queries without a relevant document do not count, as in the other metrics."""
    found: dict[str, float] = {}
    for group, own_Q in (("seen", seen_Q), ("unseen", ~seen_Q)):
        own_Q = own_Q & ~np.isnan(metrics.per_query["mrr"])
        if not own_Q.any():
            continue
        found[f"{group}/queries"] = int(own_Q.sum())
        values = {}
        for name, value_Q in metrics.per_query.items():
            values[name] = value_Q[own_Q]
            found[f"{group}/{name}"] = round(float(values[name].mean()), 6)
        found |= list_half_widths(values, WITH_INTERVAL, group_Q[own_Q], f"{group}/")
    return found


def read_before(inputs: "Inputs", queries: pa.Table) -> pa.Table | None:
    """Read first_rank and top of each query in the evaluation `before`; None without one."""
    if inputs.before is None:
        return None
    before = pq.read_table(inputs.before / "per_query.parquet", columns=["id", "first_rank", "top"])
    check_queries(inputs.before, before, queries, inputs.queries)
    return before


def compare_ranks(
    tag: str, before: pa.Table | None, first: list[int | None]
) -> dict[str, dict[str, list[float]]]:
    """Return the curve of the ranks of each query's first relevant document, before and now, for at most POINTS
    queries."""
    if before is None:
        return {}
    curve: dict[str, list[float]] = {"x": [], "y": []}
    ranks = list(zip(before["first_rank"].to_pylist(), first, strict=True))
    for old, new in ranks[:: 1 + len(ranks) // POINTS]:
        if old and new:
            curve["x"].append(old)
            curve["y"].append(new)
    return {f"rank by {tag} against rank before": curve}


def show_cases(
    config: "Config",
    inputs: "Inputs",
    queries: pa.Table,
    before: pa.Table | None,
    first: list[int | None],
    shown: list[list[str]],
) -> dict[str, list[dict[str, Any]]]:
    """Return cases of the queries whose first relevant document rose or fell most since the evaluation `before`.

    before: of `read_before`. first: rank of each query's first relevant document. shown: the ids of its top
    documents."""
    if before is None:
        return {}
    ranks = before["first_rank"].to_pylist()
    tops = before["top"].to_pylist()
    rose = []
    fell = []
    for q, (old, new) in enumerate(zip(ranks, first, strict=True)):
        if old and new and new < old:
            rose.append((new / old, q))  # by ratio, so that 40 -> 2 counts more than 400 -> 300
        elif old and new and new > old:
            fell.append((old / new, q))
    worst = sorted(fell)[: CASES // 3]
    best = sorted(rose)[: CASES - len(worst)]
    named = []
    for _, q in best + worst:
        named += tops[q] + shown[q]
    if not named:
        return {}  # without reading the corpus
    text_of = read_texts(inputs.corpus, pa.chunked_array([named], pa.string()))
    found: dict[str, list[dict[str, Any]]] = {}
    for title, cases in (("answer rose most", best), ("answer fell most", worst)):
        for _, q in cases:
            positives = queries["positives"][q].as_py()
            columns: dict[str, list[dict[str, Any]]] = {}
            for system, rank, top in (
                ("before", ranks[q], tops[q]),
                (config.tag, first[q], shown[q]),
            ):
                cards = columns.setdefault(f"{system}: answer at rank {rank}", [])
                for name, text in zip(top, text_of.find(top), strict=True):
                    cards.append({"text": text, "good": name in positives})
            case = {"title": queries["text"][q].as_py(), "columns": columns}
            found.setdefault(title, []).append(case)
    return found
