"""Predictions for new queries: rank the corpus with each system, fuse the rankings, write the best documents."""

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.jobs.apis import embed_api, rerank_api
from ratchet.jobs.predictions import fuse, prepare_queries, write_predictions
from ratchet.jobs.retrieval import embed, evaluate_retrieval, rerank
from ratchet.jobs.retrieval.datasets import find_queries
from ratchet.orchestrator.step import Output, Row, Source, Step, step
from ratchet.recipes.parts.models import Model, list_inputs

Systems = dict[str, tuple[Step | None, Step]]
"""System name -> (its evaluation on the held-out queries, for the fusion weights; its ranking of the new queries)."""

TrainingQueries = tuple[Step | Output, Step]
"""Training queries with their positives, and the embeddings of these queries."""


def prepare_new_queries(queries: str, parameter: str, readings: Sequence[str]) -> Step:
    """Read new queries, with or without labels, with the options of the data (see `find_queries`)."""
    return step(
        "predict/prepare_queries", prepare_queries.JOB, **find_queries(queries, parameter, readings)
    )


def rank_by_bm25(queries: Step | Output | None, corpus: Output, split: str) -> Step:
    inputs: dict[str, Any] = {"queries": queries, "corpus": corpus}
    return step(f"bm25/rank_{split}", evaluate_retrieval.JOB, **inputs, system="bm25", tag="bm25")


def score_lists(
    name: str, reranker: Model | str, lists: Step | Output, corpus: Output, **values: Any
) -> Step:
    """Score lists of documents with a reranker: a model, or the URL of a rerank API (str)."""
    given: dict[str, Any] = {"lists": lists, "corpus": corpus, **values}
    if isinstance(reranker, str):
        return step(name, rerank_api.JOB, url=reranker, **given)
    return step(name, rerank.JOB, **list_inputs(reranker), **given)


def embed_texts(
    name: str,
    embedder: Model | str,
    texts: Step | Output,
    role: str,
    examples: Source | Output | None = None,
) -> Step:
    """Embed texts with a model, or with an embedder behind the URL of an API (str), which gets no few-shot examples."""
    if isinstance(embedder, str):
        return step(name, embed_api.JOB, url=embedder, texts=texts, role=role)
    inputs = {**list_inputs(embedder), "texts": texts, "examples": examples}
    return step(name, embed.JOB, **inputs, role=role)


def rank_queries(
    name: str,
    queries: Step | Output,
    corpus: Output,
    embedder: Model | str,
    vectors: Step,
    reranker: Model | str | None = None,
    depth: int = 25,
    examples: Source | Output | None = None,
    train: TrainingQueries | None = None,
) -> dict[str, Step]:
    """Rank the corpus with an embedder, with a reranker if given, and by nearest training queries if `train` is given.
    Return suffix of the system's name (empty, `_reranked`, `_knn`) -> evaluation.

    vectors: embeddings of the corpus. depth: documents per query to rerank. examples: few-shot examples for an embedder
    whose folder has none. train: training queries and their embeddings by the same embedder."""
    inputs: dict[str, Any] = {"queries": queries, "corpus": corpus}
    own = embed_texts(f"{name}/embed_queries", embedder, queries, "query", examples)
    found = {
        "": step(
            f"{name}/rank",
            evaluate_retrieval.JOB,
            query_embeddings=own,
            corpus_embeddings=vectors,
            tag="embedder",
            **inputs,
        )
    }
    if reranker is not None:
        scored = score_lists(f"{name}/rerank", reranker, found[""]["ranking"], corpus, depth=depth)
        inputs |= {"system": "reranked", "tag": "reranked"}
        found["_reranked"] = step(
            f"{name}/rank_reranked", evaluate_retrieval.JOB, scored=scored, **inputs
        )
    if train:
        inputs |= {"system": "knn", "tag": "knn", "train": train[0], "train_embeddings": train[1]}
        found["_knn"] = step(
            f"{name}/rank_knn", evaluate_retrieval.JOB, query_embeddings=own, **inputs
        )
    return found


def list_systems(
    name: str, ranked: Mapping[str, Step | None], valid: Mapping[str, Step | None]
) -> Systems:
    """Return the systems that ranked the queries. ranked, valid: suffix of the system's name -> evaluation."""
    found = {}
    for end, evaluated in ranked.items():
        if evaluated is not None:
            found[f"{name}{end}"] = (valid.get(end), evaluated)
    return found


def fuse_rankings(systems: Systems, valid: Output | None) -> tuple[Output, list[Row]]:
    """Return (the fused ranking, rows with the held-out MAP@25 of each system and of the fusion).

    Without evaluations on held-out queries, the ranking of the last system is returned, not fused."""
    judged = {}
    rows = []
    for name, (held_out, ranked) in systems.items():
        if held_out is not None:
            judged[name] = (held_out, ranked)
            rows.append(Row(name, {"held-out MAP@25": held_out.metric("map@25")}))
    if len(judged) < 2:
        _, last = list((judged or systems).values())[-1]
        return last["ranking"], rows
    fused = fuse_evaluations("fuse", valid, judged)
    rows.append(Row("fused", {"held-out MAP@25": fused.metric("valid/map@25")}, steps=[fused]))
    return fused["ranking"], rows


def fuse_evaluations(
    name: str, valid: Output | None, systems: Mapping[str, tuple[Step, Step]], folds: int = 1
) -> Step:
    """Fuse the rankings of several systems. systems: name -> (evaluation on the held-out queries, which choose the
    weights; evaluation on the queries to rank). folds: see `fuse.folds`."""
    inputs: dict[str, Any] = {
        "valid": valid,
        "valid_rankings": [held_out["ranking"] for held_out, _ in systems.values()],
        "rankings": [ranked["ranking"] for _, ranked in systems.values()],
    }
    return step(name, fuse.JOB, **inputs, names=tuple(systems), folds=folds)


def write_files(ranking: Output, corpus: Output) -> Mapping[str, Output]:
    """Write the best documents of each query. Return file name -> output, for `Summary.files`."""
    written = step("predict/write", write_predictions.JOB, ranking=ranking, corpus=corpus)
    return {name: written[name] for name in write_predictions.FILES}
