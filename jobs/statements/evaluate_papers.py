"""evaluate_papers: measure how well a statement retrieves the other statements of its paper, over all statements.

Each statement is a query that ranks all statements except itself. Shards are distributed over workers. Ranks are exact,
and counted without sorting (`ratchet.models.search.ranks`). If a paper has only one statement, this is not a query.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, MinLen

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import MAP_RESOURCES, Context, Job, Result, Seed

if TYPE_CHECKING:
    import numpy as np

    from ratchet.jobs.distributed.shard_map import ReportProgress
    from ratchet.models.search.rank_metrics import RankMetrics


@dataclass(frozen=True)
class Config:
    system: Literal["dense", "bm25"] = "dense"
    """What ranks the statements. `dense`: inner products of the vectors. `bm25`: BM25, which is slow
    for more than about 100,000 statements."""
    k: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (1, 5, 10, 50, 100, 1000)
    """Cut-offs of the metrics."""
    max_queries: Annotated[int, Ge(1)] | None = None
    """Maximum number of queries, sampled at random; each still ranks all statements. None: no sampling."""
    seed: Seed = 42
    """Seed of the sample of queries."""


@dataclass(frozen=True)
class Inputs:
    statements: Path
    """Shards of statements, as written by `prepare_papers`."""
    embeddings: Path | None = None
    """Vectors of the statements, as written by `embed`; for `dense` only."""


def list_metrics(config: Config) -> list[str]:
    cutoffs = []
    for kind in ("p", "r"):
        for k in config.k:
            cutoffs.append(f"{kind}@{k}")
    return ["mrr", "map", *cutoffs, "statements", "queries", "*/interval"]


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np

    from ratchet.data.formats.papers import number_papers, other_statements
    from ratchet.data.significance import list_half_widths
    from ratchet.data.tables import list_shards, read_shards
    from ratchet.jobs.distributed.shard_map import count_rows, map_shards
    from ratchet.models.search.rank_metrics import compute_rank_metrics
    from ratchet.models.search.ranks import Relevant

    shards = list_shards(inputs.statements)
    total = count_rows(shards, ["id", "text", "paper"])
    ends = itertools.accumulate(count_rows([path], ["id"]) for path in shards)
    starts = dict(zip([path.name for path in shards], [0, *ends], strict=False))
    if config.system == "dense" and inputs.embeddings is None:
        raise InputError(
            "evaluate_papers.embeddings: nothing given; expected those of the statements; give them or set system=bm25"
        )
    if context.resources.gpus and config.system == "dense":
        device = "cuda"
    else:
        device = "cpu"
    arguments = {"config": config, "inputs": inputs, "starts": starts, "device": device}
    map_shards(context, shards, Worker, arguments, context.out / "ranks", total_rows=total)

    paper_S = number_papers(read_shards(inputs.statements, ["paper"]))
    flat_R = (
        read_shards(context.out / "ranks")["ranks"]
        .combine_chunks()
        .flatten()
        .to_numpy(zero_copy_only=False)
    )
    row_Q = np.flatnonzero(_queries_mask(config, paper_S))
    relevant = Relevant(*other_statements(paper_S, row_Q))
    metrics = compute_rank_metrics(flat_R, relevant, sorted(config.k))
    names = ["mrr", "map", *(f"{kind}@{k}" for kind in ("p", "r") for k in config.k)]
    shown = {}
    for name in names:
        shown[name] = round(metrics.values[name], 6)
    shown |= list_half_widths(metrics.per_query, names, paper_S[row_Q])
    counts = {"statements": total, "queries": metrics.queries}
    return Result(
        {**shown, **counts},
        {
            "metrics by cut-off": metrics.list_by_cutoff(("p", "r"), config.k),
            "true positives in the top k": _true_positives(metrics, config.k),
            "queries": [_queries(metrics, np.diff(relevant.indptr), total)],
        },
    )


class Worker:
    """Ranks all statements for the queries of a shard. Writes one row per query: its id, and the ranks of the other
    statements of its paper."""

    def __init__(self, config: Config, inputs: Inputs, starts: dict[str, int], device: str) -> None:
        from ratchet.data.formats.papers import number_papers
        from ratchet.data.lexical_baselines import BM25
        from ratchet.data.tables import read_shards

        self.config = config
        self.starts = starts
        self.device = device
        if config.system == "dense":
            self.embeddings = inputs.embeddings
        else:
            self.embeddings = None
        table = read_shards(
            inputs.statements, ["id", "paper"] if self.embeddings else ["id", "paper", "text"]
        )
        self.paper_S = number_papers(table)
        self.ids = table["id"].combine_chunks()
        self.texts: list[str] = [] if self.embeddings else table["text"].to_pylist()
        if self.embeddings:
            self.bm25 = None
        else:
            self.bm25 = BM25(self.texts)
        self.query_S = _queries_mask(config, self.paper_S)

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        from ratchet.data.formats.papers import other_statements
        from ratchet.data.tables import write_table
        from ratchet.data.vectors import read_blocks, read_vectors
        from ratchet.models.search.ranks import Relevant, rank_in_blocks, rank_relevant

        start = self.starts[source.name]
        names = pq.read_table(source, columns=["id"])["id"]
        query_q = np.flatnonzero(self.query_S[start : start + len(names)])
        row_Q = start + query_q
        relevant = Relevant(*other_statements(self.paper_S, row_Q))
        if self.bm25:
            texts = [self.texts[row] for row in row_Q]
            score = self.bm25.score
            ranks_R, *_ = rank_in_blocks(
                lambda some: score(texts[some]), len(self.texts), relevant, row_Q, 1, report
            )
        else:
            assert self.embeddings is not None
            query_QD = read_vectors(
                self.embeddings / f"{source.stem}.arrow", names.combine_chunks()
            )[query_q]
            read = partial(read_blocks, self.embeddings, self.ids)
            ranks_R = rank_relevant(query_QD, relevant, read, exclude_Q=row_Q, device=self.device)
        lists = pa.ListArray.from_arrays(
            pa.array(relevant.indptr, pa.int32()), pa.array(ranks_R, pa.int64())
        )
        write_table(
            target, pa.table({"id": names.take(pa.array(query_q)).combine_chunks(), "ranks": lists})
        )
        return {"rows": len(names), "queries": len(row_Q)}


def _queries_mask(config: Config, paper_S: np.ndarray) -> np.ndarray:
    """Return which statements are queries: bool [S]."""
    import numpy as np

    if len(paper_S):
        query_S = np.bincount(paper_S)[paper_S] >= 2
    else:
        query_S = np.zeros(0, bool)
    if config.max_queries is not None and config.max_queries < query_S.sum():
        rows = np.flatnonzero(query_S)
        query_S = np.zeros_like(query_S)
        query_S[
            np.random.default_rng(config.seed).choice(rows, config.max_queries, replace=False)
        ] = True
    return query_S


def _true_positives(metrics: RankMetrics, ks: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return statistics of the number of relevant statements in the top k of a query, for each k."""
    import numpy as np

    rows = []
    for k in ks:
        found_Q = metrics.per_query[f"p@{k}"] * k
        if len(found_Q):
            spread = np.percentile(found_Q, [10, 25, 50, 75, 90, 99])
        else:
            spread = np.zeros(6)
        names = ("10%", "25%", "median", "75%", "90%", "99%")
        if len(found_Q):
            mean = round(float(found_Q.mean()), 4)
        else:
            mean = 0.0
        rows.append(
            {"k": k, "mean": mean, **dict(zip(names, spread.round(4).tolist(), strict=True))}
        )
    return rows


def _queries(
    metrics: RankMetrics, relevant_Q: np.ndarray, statements: int
) -> dict[str, float | int | str]:
    from ratchet.data.rankings import summarize_counts

    relevant = {}
    for name, value in summarize_counts(relevant_Q).items():
        relevant[f"relevant, {name}"] = value
    first = {}
    for name, value in metrics.ranks.items():
        first[f"first rank, {name}"] = round(value, 4)
    return {"statements": statements, "queries": metrics.queries, **relevant, **first}


JOB = Job(
    "evaluate_papers",
    config=Config,
    inputs=Inputs,
    run=run,
    resources=MAP_RESOURCES,
    outputs=("ranks",),
    metrics=list_metrics,
)
