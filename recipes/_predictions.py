"""Predictions for new queries: rank the corpus by each system, fuse the rankings, write the first documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ratchet.jobs.retrieval import embed, evaluate_retrieval, fuse, prepare_queries, rerank, write_predictions
from ratchet.orchestrator.step import Output, Row, Source, Step, step

Fusion = Literal["rrf", "scores"]


@dataclass(frozen=True)
class Ranking:
    """A system's ranking of the queries, and its evaluation on the held-out queries, by which systems are weighted."""

    name: str
    ranking: Output
    valid: Step | None


@dataclass(frozen=True)
class Trained:
    """What a retrieval loop made: an embedder, and perhaps a reranker of its first documents."""

    name: str
    embedder: Source | Output
    corpus_embeddings: Step
    valid: Step | None
    """The evaluation of the embedder on the held-out queries."""
    reranker: Output | None = None
    reranked_valid: Step | None = None
    """The evaluation of the reranked lists."""
    depth: int = 25
    """Documents per query that are reranked."""


def prepare_new_queries(queries: Source) -> Step:
    """Read queries, which need no labels."""
    return step("predict/prepare_queries", prepare_queries.JOB, queries=queries)


def rank_by_bm25(queries: Step | Output | None, corpus: Output, split: str) -> Step:
    inputs: dict[str, Any] = {"queries": queries, "corpus": corpus}
    return step(f"bm25/rank_{split}", evaluate_retrieval.JOB, **inputs, system="bm25", tag="bm25")


def rank_queries(trained: Trained, queries: Step, corpus: Output) -> list[Ranking]:
    """Rank the corpus by a loop's embedder, and by its reranker if it has one."""
    name = trained.name
    inputs: dict[str, Any] = {"queries": queries, "corpus": corpus}
    vectors = step(f"{name}/embed_queries", embed.JOB, model=trained.embedder, texts=queries, role="query")
    ranked = step(
        f"{name}/rank",
        evaluate_retrieval.JOB,
        **inputs,
        query_embeddings=vectors,
        corpus_embeddings=trained.corpus_embeddings,
        tag="embedder",
    )
    found = [Ranking(name, ranked["ranking"], trained.valid)]
    if trained.reranker is None:
        return found
    lists: dict[str, Any] = {"lists": ranked["ranking"], "corpus": corpus, "depth": trained.depth}
    scored = step(f"{name}/rerank", rerank.JOB, model=trained.reranker, **lists)
    reranked = step(
        f"{name}/rank_reranked", evaluate_retrieval.JOB, **inputs, scored=scored, system="reranked", tag="reranked"
    )
    return [*found, Ranking(f"{name}_reranked", reranked["ranking"], trained.reranked_valid)]


def fuse_rankings(rankings: Sequence[Ranking], valid: Output | None, method: Fusion) -> tuple[Output, list[Row]]:
    """Return one ranking, and the rows of the systems on the held-out queries that it is weighted by.

    Without held-out queries the last ranking stands for all.
    """
    judged = [(one, one.valid) for one in rankings if one.valid is not None]
    if not judged:
        return rankings[-1].ranking, []
    rows = [Row(one.name, {"held-out MAP@25": evaluated.metric("map@25")}) for one, evaluated in judged]
    if len(judged) == 1:
        return judged[0][0].ranking, rows
    fused = step(
        "fuse",
        fuse.JOB,
        valid=valid,
        valid_rankings=[evaluated["ranking"] for _, evaluated in judged],
        rankings=[one.ranking for one, _ in judged],
        names=tuple(one.name for one, _ in judged),
        method=method,
    )
    return fused["ranking"], [*rows, Row("fused", {"held-out MAP@25": fused.metric("valid/map@25")}, steps=[fused])]


def write_files(ranking: Output, corpus: Output) -> Mapping[str, Output]:
    """Write the first documents of each query. Return the files of a Summary."""
    written = step("predict/write", write_predictions.JOB, ranking=ranking, corpus=corpus)
    return {name: written[name] for name in write_predictions.FILES}
