"""Ranks statements against all others and computes the metrics."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data import lexical_baselines as lexical
from ratchet.data.formats.papers import number_papers, other_statements
from ratchet.data.rankings import summarize_counts
from ratchet.data.significance import list_half_widths
from ratchet.data.tables import list_shards, read_shards, write_table
from ratchet.data.vectors import read_blocks
from ratchet.errors import InputError
from ratchet.jobs.distributed.shard_map import ReportProgress, count_rows, map_shards
from ratchet.jobs.statements.evaluate_papers import Config, Inputs
from ratchet.jobs.training.selection import compute_merging_cost, list_cutoffs
from ratchet.models.search.rank_metrics import RankMetrics, compute_rank_metrics
from ratchet.models.search.ranks import Relevant, rank_by_scores, rank_relevant
from ratchet.orchestrator.job_interface import Context, Progress, Result

BLOCK_ROWS = 65_536
"""Statements whose vectors are checked and multiplied at a time."""

BYTES_AT_ONCE = 1 << 28
"""Bytes of word-based scores that a worker holds at a time."""


class Worker:
    """Ranks all statements for the queries of a shard. Writes one row per query: its id, and the `ranks` of the others
    of its paper."""

    def __init__(
        self, config: Config, inputs: Inputs, starts: dict[str, int], vectors: Path | None, device: str
    ) -> None:
        self.config, self.starts, self.device = config, starts, device
        table = read_shards(inputs.statements, ["paper"] if vectors else ["paper", "text"])
        self.paper_S = number_papers(table)
        self.texts: list[str] = [] if vectors else table["text"].to_pylist()
        self.vectors_SD = None if vectors is None else np.load(vectors, mmap_mode="r")
        self.query_S = _queries_mask(config, self.paper_S)

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        start, names = self.starts[source.name], pq.read_table(source, columns=["id"])["id"]
        query_q = np.flatnonzero(self.query_S[start : start + len(names)])
        row_Q = start + query_q
        relevant = Relevant(*other_statements(self.paper_S, row_Q))
        if self.vectors_SD is None:
            ranks_R = self._words(row_Q, relevant, report)
        else:
            # The statements of a paper are adjacent, so the relevant ones lie in few of these blocks.
            starts = range(0, len(self.vectors_SD), BLOCK_ROWS)
            blocks = [(first, self.vectors_SD[first : first + BLOCK_ROWS]) for first in starts]
            query_QD = self.vectors_SD[row_Q]
            ranks_R = rank_relevant(query_QD, relevant, lambda: blocks, exclude_Q=row_Q, device=self.device)
        lists = pa.ListArray.from_arrays(pa.array(relevant.indptr, pa.int32()), pa.array(ranks_R, pa.int64()))
        write_table(target, pa.table({"id": names.take(pa.array(query_q)).combine_chunks(), "ranks": lists}))
        return {"rows": len(names), "queries": len(row_Q)}

    def _words(self, row_Q: np.ndarray, relevant: Relevant, report: ReportProgress) -> np.ndarray:
        scores = lexical.score_jaccard if self.config.system == "jaccard" else lexical.score_bm25
        block = max(1, min(256, BYTES_AT_ONCE // (16 * len(self.texts))))
        ranks = [np.zeros(0, np.int64)]
        for start, scores_QS in scores(self.texts, [self.texts[row] for row in row_Q], block):
            stop = start + len(scores_QS)
            ranks.append(rank_by_scores(scores_QS, relevant.select(start, stop), row_Q[start:stop]))
            report(stop)
        return np.concatenate(ranks)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    shards = list_shards(inputs.statements)
    total = count_rows(shards, ["id", "text", "paper"])
    ends = itertools.accumulate(count_rows([path], ["id"]) for path in shards)
    starts = dict(zip([path.name for path in shards], [0, *ends], strict=False))
    vectors = _collect_vectors(context, config, inputs)
    device = "cuda" if context.resources.gpus and config.system == "dense" else "cpu"
    arguments = {"config": config, "inputs": inputs, "starts": starts, "vectors": vectors, "device": device}
    map_shards(context, shards, Worker, arguments, context.out / "ranks", total_rows=total)

    paper_S = number_papers(read_shards(inputs.statements, ["paper"]))
    flat_R = read_shards(context.out / "ranks")["ranks"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    row_Q = np.flatnonzero(_queries_mask(config, paper_S))
    relevant = Relevant(*other_statements(paper_S, row_Q))
    metrics = compute_rank_metrics(flat_R, relevant, list_cutoffs(inputs.selection, config.k))
    names = ["mrr", "map", *(f"{kind}@{k}" for kind in ("p", "r") for k in config.k)]
    shown = {name: round(metrics.values[name], 6) for name in names}
    shown |= list_half_widths(metrics.per_query, names, paper_S[row_Q])
    counts = {"statements": total, "queries": metrics.queries}
    return Result(
        {**shown, **counts, **compute_merging_cost(inputs.selection, metrics.values, metrics.queries)},
        {
            "metrics by cut-off": metrics.list_by_cutoff(("p", "r"), config.k),
            "true positives in the top k": _true_positives(metrics, config.k),
            "queries": [_queries(metrics, np.diff(relevant.indptr), total)],
        },
    )


def _queries_mask(config: Config, paper_S: np.ndarray) -> np.ndarray:
    """Return which statements are queries: bool [S]."""
    query_S = np.bincount(paper_S)[paper_S] >= 2 if len(paper_S) else np.zeros(0, bool)
    if config.max_queries is not None and config.max_queries < query_S.sum():
        rows = np.flatnonzero(query_S)
        query_S = np.zeros_like(query_S)
        query_S[np.random.default_rng(config.seed).choice(rows, config.max_queries, replace=False)] = True
    return query_S


def _collect_vectors(context: Context, config: Config, inputs: Inputs) -> Path | None:
    """Write all vectors to one file, which workers map into memory, since each reads all of it for every shard."""
    if config.system != "dense":
        return None
    if inputs.embeddings is None:
        raise InputError(
            "evaluate_papers.embeddings: nothing given; expected those of the statements; give them or set system=bm25"
        )
    names = read_shards(inputs.statements, ["id"])["id"].combine_chunks()
    target, fresh = context.work / "vectors.npy", context.work / f"vectors-{context.attempt}.npy"
    if target.exists():  # of an earlier attempt, and complete, since it was renamed
        return target
    dim = pq.read_schema(list_shards(inputs.embeddings)[0]).field("embedding").type.list_size
    all_SD = np.lib.format.open_memmap(fresh, mode="w+", dtype=np.float32, shape=(len(names), dim))
    for start, block_ND in read_blocks(inputs.embeddings, names):
        all_SD[start : start + len(block_ND)] = block_ND
        context.progress(Progress(start + len(block_ND), len(names), "vectors", "collecting"))
    all_SD.flush()
    del all_SD
    fresh.replace(target)
    return target


def _true_positives(metrics: RankMetrics, ks: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return statistics of the relevant statements found per query."""
    rows = []
    for k in ks:
        found_Q = metrics.per_query[f"p@{k}"] * k
        spread = np.percentile(found_Q, [10, 25, 50, 75, 90, 99]) if len(found_Q) else np.zeros(6)
        names = ("10%", "25%", "median", "75%", "90%", "99%")
        mean = round(float(found_Q.mean()), 4) if len(found_Q) else 0.0
        rows.append({"k": k, "mean": mean, **dict(zip(names, spread.round(4).tolist(), strict=True))})
    return rows


def _queries(metrics: RankMetrics, relevant_Q: np.ndarray, statements: int) -> dict[str, float | int | str]:
    relevant = {f"relevant, {name}": value for name, value in summarize_counts(relevant_Q).items()}
    first = {f"first rank, {name}": round(value, 4) for name, value in metrics.ranks.items()}
    return {"statements": statements, "queries": metrics.queries, **relevant, **first}
