"""Synthetic queries: a causal language model writes them, and the round trip selects those to train on."""

from typing import Any

from ratchet.jobs.answers import generate
from ratchet.jobs.synthetic import clean_queries, filter_queries, prepare_query_generation
from ratchet.orchestrator.step import Output, Source, Step, step
from ratchet.recipes.parts.models import Model
from ratchet.recipes.parts.predictions import rank_queries
from ratchet.recipes.parts.retrieval_loop import RetrievalLoop


def add_synthetic_queries(
    loop: RetrievalLoop, embedder: Model, generator: Source | Output, queries_per_document: int
) -> Step:
    """Return the training queries of a loop, followed by synthetic ones. A synthetic query is kept if the embedder, and
    the loop's teacher if it has one, rank its document high enough (see `filter_queries`)."""
    name = f"{loop.folder}synthetic"
    corpus = loop.prepared["corpus"]
    train = loop.prepared["train"]
    samples = step(
        f"{name}/prepare", prepare_query_generation.JOB, corpus=corpus, train=train, seed=loop.seed
    )
    completions = step(
        f"{name}/generate",
        generate.JOB,
        model=generator,
        samples=samples,
        num_completions=queries_per_document,
        temperature=0.7,  # as in Promptagator (Dai et al. 2023)
        max_new_tokens=64,
        seed=loop.seed,
    )
    queries = step(f"{name}/clean", clean_queries.JOB, completions=completions, train=train)
    vectors = loop.embed(f"{loop.folder}zero_shot", embedder, "corpus")
    reranker = loop.teacher.model if loop.teacher else None
    ranked = rank_queries(
        name, queries, corpus, embedder, vectors, reranker, loop.depth, loop.examples
    )
    rankings = zip(
        ("ranking", "reranked"), (one["ranking"] for one in ranked.values()), strict=False
    )
    inputs: dict[str, Any] = {"train": train, "queries": queries, **dict(rankings)}
    return step(f"{name}/filter", filter_queries.JOB, **inputs)
