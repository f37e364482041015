"""evaluate_retrieval: rank the corpus by vectors, BM25, nearest training queries or a reranker; exact metrics."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import MinLen

from ratchet.errors import InputError
from ratchet.jobs import planned_rows
from ratchet.jobs.distributed.piece_size import SEARCH_PIECES, count_pieces, divide_search
from ratchet.orchestrator.job_interface import (
    MAP_RESOURCES,
    Context,
    Division,
    Job,
    Needs,
    Parents,
    PositiveInt,
    Resources,
    Result,
    Unit,
)


@dataclass(frozen=True)
class Config:
    system: Literal["dense", "bm25", "knn", "reranked"] = "dense"
    """What ranks the corpus. `dense`: inner products of the vectors. `bm25`: BM25 on the texts. `knn`: votes of the
    nearest training queries for their positives (see `neighbors`). `reranked`: the ranking of another evaluation, with
    its top documents reordered by a reranker's scores."""
    k: Annotated[tuple[PositiveInt, ...], MinLen(1)] = (1, 5, 10, 25, 50, 75, 100)
    """Cut-offs of the metrics. Ranks are exact over the whole corpus, so cut-offs may exceed `top`."""
    top: Annotated[PositiveInt, Unit("documents")] = 100
    """Number of documents per query that are written to `run.trec` and `ranking/`, the input of `rerank`."""
    neighbors: Annotated[PositiveInt, Unit("queries")] = 20
    """For `knn`: number of training queries that vote. The weight of a vote is that query's inner product minus that
    of the nearest one that does not vote (after Dudani 1976, "The distance-weighted k-nearest-neighbor rule")."""
    tag: str = "ratchet"
    """Name of the system in `run.trec` and in the report."""


KINDS = ("map", "ndcg", "r", "p", "hit")
"""Metrics that have a cut-off."""

NEEDED = {
    "dense": ("query_embeddings", "corpus_embeddings"),
    "knn": ("query_embeddings", "train", "train_embeddings"),
    "reranked": ("scored",),
}
"""System -> the inputs that it needs."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    """Shards of queries with their positives. With the columns of `ratchet.data.tables.HELD_OUT`, metrics are reported
    also for seen and unseen queries separately (`seen/map@25`, `unseen/map@25`: with and without a positive of a
    training query), and intervals take groups into account."""
    corpus: Path
    """Shards of documents."""
    query_embeddings: Path | None = None
    """Vectors of `queries`, for `dense` and `knn`."""
    corpus_embeddings: Path | None = None
    """Vectors of `corpus`, for `dense`."""
    train: Path | None = None
    """For `knn`: shards of training queries with their positives."""
    train_embeddings: Path | None = None
    """For `knn`: vectors of `train`."""
    before: Path | None = None
    """Another evaluation of the same queries, to show in the report how their documents changed."""
    scored: Path | None = None
    """For `reranked`: the `ranking/` of another evaluation with a reranker's scores, as written by `rerank`."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    if not config.tag or any(letter.isspace() for letter in config.tag):
        raise InputError(
            f"evaluate_retrieval.tag: '{config.tag}' given; expected one word, since it is a column of run.trec"
        )


def list_metrics(config: Config) -> list[str]:
    names = ["mrr", "map", "queries"]
    for kind in KINDS:
        for k in config.k:
            names.append(f"{kind}@{k}")
    found = ["queries_without_relevant", "first_rank/*", "*/interval"]
    for name in names:
        found += [name, f"seen/{name}", f"unseen/{name}"]
    return found


def divide(config: Config, inputs: Inputs) -> Division:
    """Divide the queries. A reranked list is only put in order, and BM25 runs on CPUs."""
    if config.system == "reranked":
        return Division(most=1, gpus=False)
    if config.system == "bm25":
        return Division(most=count_pieces(inputs.queries, SEARCH_PIECES), gpus=False)
    return divide_search(inputs.queries, inputs.train or inputs.corpus)


def estimate_needs(
    config: Config, inputs: Inputs, resources: Resources, parents: Parents
) -> Needs | None:
    texts = 0
    if config.system == "bm25":
        texts = planned_rows.BM25_CHARACTER * (
            planned_rows.count(parents, "corpus", "characters") or 0
        )
    rows = planned_rows.count_rows(parents, "corpus") + planned_rows.count_rows(parents, "train")
    return planned_rows.estimate_search(rows, texts=texts)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from ratchet.data.formats.trec import write_qrels, write_run
    from ratchet.data.significance import list_half_widths, number_groups
    from ratchet.data.tables import read_shards, write_table
    from ratchet.jobs.distributed.shard_map import map_queries
    from ratchet.jobs.retrieval import ranking as work
    from ratchet.models.search.rank_metrics import compute_rank_metrics
    from ratchet.models.search.ranks import Relevant

    needed = NEEDED.get(config.system, ())
    if any(getattr(inputs, name) is None for name in needed):
        raise InputError(
            f"evaluate_retrieval: system={config.system} given; expected {', '.join(needed)} too; give them"
        )
    queries = read_shards(inputs.queries)
    ranking = context.out / "ranking"
    unscored = 0
    if config.system == "reranked":
        work.write_reranked(config, inputs, queries, ranking)
    else:
        columns = ["id", "text", "positives", "grades"]
        counts = map_queries(context, work.Worker, config, inputs, inputs.queries, columns, ranking)
        unscored = counts["unscored"]

    ranked = read_shards(ranking)
    write_run(context.out / "run.trec", ranked, config.tag)
    write_qrels(context.out / "qrels.trec", queries)

    grades_R = pc.list_flatten(queries["grades"]).to_numpy()
    ends_Q = np.cumsum(pc.list_value_length(queries["positives"]).to_numpy())
    # Metrics do not use the rows of the relevant documents.
    relevant = Relevant(np.append(0, ends_Q), np.arange(len(grades_R)), grades_R)
    ranks_R = pc.list_flatten(ranked["ranks"]).to_numpy().astype(np.int64)
    metrics = compute_rank_metrics(ranks_R, relevant, sorted(config.k))
    # The reciprocal rank is NaN for a query without a relevant document.
    first = []
    for one in metrics.per_query["mrr"]:
        first.append(None if np.isnan(one) else round(1 / one))
    shown = pc.list_slice(ranked["documents"], 0, work.SHOWN).to_pylist()
    per_query = {"id": queries["id"], "first_rank": pa.array(first, pa.int64()), "top": shown}
    if "seen" in queries.column_names:
        per_query["seen"] = queries["seen"]
    write_table(context.out / "per_query.parquet", pa.table(per_query | metrics.per_query))
    if metrics.empty == metrics.queries:  # new queries without labels
        return Result({"queries": metrics.queries, "queries_without_relevant": metrics.empty})

    group_Q = number_groups(queries)
    found = work.list_scalars(metrics)
    found |= list_half_widths(metrics.per_query, work.WITH_INTERVAL, group_Q)
    if "seen" in per_query:
        found |= work.compute_by_seen(metrics, queries["seen"].to_numpy(), group_Q)
    tables = {f"{config.tag}: metrics by cut-off": metrics.list_by_cutoff(KINDS, config.k)}
    before = work.read_before(inputs, queries)
    cases = work.show_cases(config, inputs, queries, before, first, shown)
    curves = work.compare_ranks(config.tag, before, first)
    note = ""
    if unscored:
        note = f"{unscored:,} of {metrics.queries:,} queries share no word with the corpus"
    return Result(found, tables, curves, cases, note)


JOB = Job(
    "evaluate_retrieval",
    Config,
    Inputs,
    run,
    divide=divide,
    resources=MAP_RESOURCES,
    check=check,
    needs=estimate_needs,
    outputs=("ranking", "run.trec", "qrels.trec", "per_query.parquet"),
    metrics=list_metrics,
)
