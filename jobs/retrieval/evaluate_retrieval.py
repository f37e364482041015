"""evaluate_retrieval: rank the corpus by vectors, BM25, nearest training queries or a reranker; exact metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, MinLen

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import MAP_RESOURCES, Job, Unit


@dataclass(frozen=True)
class Config:
    system: Literal["dense", "bm25", "knn", "reranked"] = "dense"
    """What ranks the corpus. `dense`: inner products of the vectors. `bm25`: BM25 on the texts. `knn`: votes of the
    nearest training queries for their positives (see `neighbors`). `reranked`: the ranking of another evaluation, with
    its top documents reordered by a reranker's scores."""
    k: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (1, 5, 10, 25, 50, 75, 100)
    """Cut-offs of the metrics. Ranks are exact over the whole corpus, so cut-offs may exceed `top`."""
    top: Annotated[int, Ge(1), Unit("documents")] = 100
    """Number of documents per query that are written to `run.trec` and `ranking/`, the input of `rerank`."""
    dims: tuple[Annotated[int, Ge(1)], ...] = ()
    """For `dense`: numbers of leading dimensions to evaluate as well, such as 64,128 (see `matryoshka_dims` of
    `finetune_embedder`): alone, and with the top `rescore` documents reordered by the whole vectors."""
    rescore: Annotated[int, Ge(1), Unit("documents")] = 200
    """For `dims`: number of documents per query that are reordered by the whole vectors."""
    neighbors: Annotated[int, Ge(1), Unit("queries")] = 20
    """For `knn`: number of training queries that vote. The weight of a vote is that query's inner product minus that
    of the nearest one that does not vote (after Dudani 1976, "The distance-weighted k-nearest-neighbor rule")."""
    num_cases: Annotated[int, Ge(0)] = 6
    """Number of queries that the report shows with their retrieved documents, if `before` is given."""
    case_documents: Annotated[int, Ge(0)] = 5
    """Number of documents that the report shows per query."""
    tag: str = "ratchet"
    """Name of the system in `run.trec` and in the report."""


WITH_INTERVAL = ("map@25", "r@25", "ndcg@10", "mrr", "map")
"""Metrics whose 95 % confidence interval is reported too, as its half width, such as `map@25/interval`."""


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
    selection: Path | None = None
    """The `selection.json` of the finetuning step whose merged model is evaluated on its held-out queries. Adds the
    metric `merging_cost`: the selecting metric before merging minus after merging."""


def check(config: Config, inputs: Inputs) -> None:
    if config.case_documents > config.top:
        raise InputError(
            f"evaluate_retrieval.case_documents: {config.case_documents} given; expected at most top, which is"
            f" {config.top}"
        )
    if list(config.dims) != sorted(set(config.dims)):
        raise InputError(
            f"evaluate_retrieval.dims: {','.join(map(str, config.dims))} given; expected rising numbers; sort them"
        )
    if config.dims and config.system != "dense":
        raise InputError(
            f"evaluate_retrieval.dims: {','.join(map(str, config.dims))} given, with system={config.system}; expected"
            " none, since it has no vectors; leave it out"
        )
    if not config.tag or any(letter.isspace() for letter in config.tag):
        raise InputError(
            f"evaluate_retrieval.tag: '{config.tag}' given; expected one word, since it is a column of run.trec"
        )


def list_metrics(config: Config) -> list[str]:
    by_rank = []
    for kind in ("map", "r", "ndcg", "p", "hit"):
        for k in config.k:
            by_rank.append(f"{kind}@{k}")
    groups = []
    for group in ("seen", "unseen"):
        for name in (*by_rank, "mrr", "map", "queries"):
            groups.append(f"{group}/{name}")
    return [
        *by_rank,
        "mrr",
        "map",
        *groups,
        "queries",
        "queries_without_relevant",
        "first_rank/*",
        "*/interval",
        "merging_cost",
        "merging_cost/queries",
    ]


JOB = Job(
    "evaluate_retrieval",
    config=Config,
    inputs=Inputs,
    resources=MAP_RESOURCES,
    is_worker=lambda config: True,
    check=check,
    outputs=("ranking", "run.trec", "qrels.trec", "per_query.parquet"),
    metrics=list_metrics,
)
