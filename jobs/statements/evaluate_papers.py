"""evaluate_papers: measure how well a statement retrieves the other statements of its paper, over all statements.

Each statement is a query that ranks all statements except itself. Shards are distributed over workers. Ranks are exact,
and counted without sorting (`ratchet.models.search.ranks`). If a paper has only one statement, this is not a query.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import MinLen

from ratchet.errors import InputError
from ratchet.jobs.distributed.piece_size import SEARCH_PIECES, divide_input
from ratchet.orchestrator.job_interface import (
    MAP_RESOURCES,
    Context,
    Job,
    PositiveInt,
    Result,
    Seed,
)

if TYPE_CHECKING:
    import numpy as np

    from ratchet.jobs.distributed.piece_runner import ReportProgress
    from ratchet.jobs.distributed.pieces import Piece


@dataclass(frozen=True)
class Config:
    system: Literal["dense", "bm25"] = "dense"
    """What ranks the statements. `dense`: inner products of the vectors. `bm25`: BM25, which is slow
    for more than about 100,000 statements."""
    k: Annotated[tuple[PositiveInt, ...], MinLen(1)] = (1, 5, 10, 50, 100, 1000)
    """Cut-offs of the metrics."""
    max_queries: PositiveInt | None = None
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
    names = ["mrr", "map"]
    for kind in ("p", "r"):
        for k in config.k:
            names.append(f"{kind}@{k}")
    return names


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np
    import pyarrow.compute as pc

    from ratchet.data.formats.papers import number_papers, other_statements
    from ratchet.data.significance import list_half_widths
    from ratchet.data.tables import read_shards
    from ratchet.jobs.distributed.shard_map import map_queries
    from ratchet.models.search.rank_metrics import compute_rank_metrics
    from ratchet.models.search.ranks import Relevant

    if config.system == "dense" and inputs.embeddings is None:
        raise InputError(
            "evaluate_papers.embeddings: nothing given; expected those of the statements; give them or set system=bm25"
        )
    folder = context.out / "ranks"
    columns = ["id", "text", "paper"]
    counts = map_queries(context, Worker, config, inputs, inputs.statements, columns, folder)
    paper_S = number_papers(read_shards(inputs.statements, ["paper"]))
    rows_Q = choose_queries(config, paper_S)
    relevant = Relevant(*other_statements(paper_S, rows_Q))
    ranks_R = pc.list_flatten(read_shards(folder)["ranks"]).to_numpy()
    metrics = compute_rank_metrics(ranks_R, relevant, sorted(config.k))
    names = list_metrics(config)
    shown = {name: round(metrics.values[name], 6) for name in names}
    shown |= list_half_widths(metrics.per_query, names, paper_S[rows_Q])
    count_P = np.bincount(paper_S)
    shown |= {"papers": len(count_P), "statements": counts["rows"], "queries": metrics.queries}
    by_cutoff = []
    for k in config.k:
        row = {"K": k, "Precision@K": shown[f"p@{k}"], "Recall@K": shown[f"r@{k}"]}
        by_cutoff.append(row)
    others_S = count_P[paper_S] - 1
    statistics = {
        "Mean": round(float(others_S.mean()), 4),
        "Median": float(np.median(others_S)),
        "Std Dev": round(float(others_S.std()), 4),
        "Min": int(others_S.min()),
        "Max": int(others_S.max()),
    }
    for percent in (50, 75, 90, 95, 99):
        count = np.percentile(others_S, percent, method="inverted_cdf")
        statistics[f"P{percent}"] = int(count)
    tables = {"metrics by cut-off": by_cutoff, "other statements of a paper": [statistics]}
    return Result(shown, tables)


class Worker:
    """Ranks all statements for the queries of a piece. Writes one row per query: its id, and the ranks of the other
    statements of its paper."""

    def __init__(self, config: Config, inputs: Inputs, device: str) -> None:
        from ratchet.data.formats.papers import number_papers
        from ratchet.data.lexical_baselines import BM25
        from ratchet.data.tables import DocumentRows, read_shards

        self.config = config
        self.inputs = inputs
        self.device = device
        columns = ["id", "paper"]
        if config.system == "bm25":
            columns.append("text")
        table = read_shards(inputs.statements, columns)
        self.ids = table["id"].combine_chunks()
        self.paper_S = number_papers(table)
        self.rows = DocumentRows(table["id"])
        self.rows_Q = choose_queries(config, self.paper_S)
        if config.system == "bm25":
            self.texts: list[str] = table["text"].to_pylist()
            self.bm25 = BM25(self.texts)

    def __call__(self, piece: "Piece", target: Path, report: "ReportProgress") -> dict[str, int]:
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        from ratchet.data.formats.papers import other_statements
        from ratchet.data.tables import write_table
        from ratchet.data.vectors import read_blocks
        from ratchet.models.search.ranks import Relevant, rank_in_blocks, rank_relevant

        whole = pq.read_table(piece.source, columns=["id"])
        names = piece.take(whole)["id"]
        row_S = self.rows.find(names)
        is_query_S = np.isin(row_S, self.rows_Q)
        own_Q = row_S[is_query_S]
        relevant = Relevant(*other_statements(self.paper_S, own_Q))
        if self.config.system == "bm25":
            texts = [self.texts[row] for row in own_Q]
            score = self.bm25.score
            ranks_R, *_ = rank_in_blocks(
                lambda some: score(texts[some]), len(self.texts), relevant, own_Q, 1, report
            )
        else:
            folder = self.inputs.embeddings
            assert folder is not None
            query_QD = piece.take_vectors(folder, whole)[is_query_S]
            read = partial(read_blocks, folder, self.ids)
            ranks_R = rank_relevant(query_QD, relevant, read, exclude_Q=own_Q, device=self.device)
        lists = pa.ListArray.from_arrays(pa.array(relevant.indptr, pa.int32()), pa.array(ranks_R))
        write_table(target, pa.table({"id": self.ids.take(pa.array(own_Q)), "ranks": lists}))
        return {"rows": len(names), "queries": len(own_Q)}


def choose_queries(config: Config, paper_S: "np.ndarray") -> "np.ndarray":
    """Return the rows of the statements that are queries, int64, rising."""
    import numpy as np

    rows_Q = np.flatnonzero(np.bincount(paper_S)[paper_S] >= 2)
    if config.max_queries is None or config.max_queries >= len(rows_Q):
        return rows_Q
    random = np.random.default_rng(config.seed)
    return np.sort(random.choice(rows_Q, config.max_queries, replace=False))


JOB = Job(
    "evaluate_papers",
    Config,
    Inputs,
    run,
    divide=divide_input("statements", SEARCH_PIECES),
    resources=MAP_RESOURCES,
    outputs=("ranks",),
    metrics=lambda config: [*list_metrics(config), "papers", "statements", "queries", "*/interval"],
)
