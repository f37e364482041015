"""evaluate_retrieval: exact metrics over the whole ranking (vectors, BM25, nearest training queries or a reranker), and
the ranking itself."""

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
    """`dense`: ranked by inner product of the vectors. `bm25`: ranked by words. `knn`: ranked by the nearest training
    queries, each of which votes for its documents (see `neighbors`). `reranked`: the best documents of another
    evaluation in the order of a reranker's scores, then all other documents in their previous order."""
    k: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)] = (1, 5, 10, 25, 50, 75, 100)
    """Cut-offs of the metrics. Ranks are exact over the whole corpus."""
    top: Annotated[int, Ge(1), Unit("documents")] = 100
    """Documents per query in `run.trec` and in `ranking/`, the input of `rerank`."""
    dims: tuple[Annotated[int, Ge(1)], ...] = ()
    """For `dense`: also rank by the first so many dimensions alone (see `matryoshka_dims` of `finetune_embedder`), and
    by the whole vectors among the `rescore` documents that these find. The table compares them."""
    rescore: Annotated[int, Ge(1), Unit("documents")] = 200
    """Documents of a search in few dimensions that are ordered again by the whole vectors."""
    neighbors: Annotated[int, Ge(1), Unit("queries")] = 20
    """For `knn`: the number of training queries that vote. Each has the weight by which its inner product is above that
    of the first one that does not vote (after Dudani 1976, "The distance-weighted k-nearest-neighbor rule")."""
    num_cases: Annotated[int, Ge(0)] = 6
    """Queries shown in the report with the documents retrieved for them, if there is a `before`."""
    case_documents: Annotated[int, Ge(0)] = 5
    """Documents shown per query."""
    tag: str = "ratchet"
    """Name of the system in `run.trec` and in the report."""


WITH_INTERVAL = ("map@25", "r@25", "ndcg@10", "mrr", "map")
"""Metrics that are reported with the half width of their 95 % confidence interval: `map@25/interval`."""


@dataclass(frozen=True)
class Inputs:
    queries: Path
    """Shards of queries with their positives. With the columns of `ratchet.data.tables.HELD_OUT`, queries with a
    positive of a training query and those without have metrics of their own too (`seen/map@25`, `unseen/map@25`), and
    the intervals are those of groups."""
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
    """Another evaluation of the same queries to compare with."""
    scored: Path | None = None
    """For `reranked`: the `ranking/` of another evaluation with the scores of a reranker."""
    selection: Path | None = None
    """The `selection.json` of the finetune whose merged model is evaluated, on its held-out rows: adds what merging
    cost."""


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
    by_rank = [f"{kind}@{k}" for kind in ("map", "r", "ndcg", "p", "hit") for k in config.k]
    groups = [f"{group}/{name}" for group in ("seen", "unseen") for name in (*by_rank, "mrr", "map", "queries")]
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
