"""Synthetic queries: a causal language model writes them, a judge and the round trip select those to train on."""

from typing import Any

from ratchet.jobs.answers import generate, generate_api
from ratchet.jobs.synthetic import (
    clean_queries,
    filter_queries,
    prepare_judgement,
    prepare_query_generation,
)
from ratchet.orchestrator.step import Output, Source, Step, step
from ratchet.recipes.parts.models import Model, choose_model
from ratchet.recipes.parts.predictions import rank_queries
from ratchet.recipes.parts.retrieval_loop import RetrievalLoop

Generator = Source | Output | str
"""A causal language model, or the URL of an OpenAI-compatible API."""


def choose_generator(name: str) -> Generator:
    return name if name.startswith(("http://", "https://")) else choose_model(name)


def answer(name: str, generator: Generator, samples: Step, **settings: Any) -> Step:
    """Return the step that answers samples with a model or an API."""
    if isinstance(generator, str):
        return step(name, generate_api.JOB, url=generator, samples=samples, **settings)
    return step(name, generate.JOB, model=generator, samples=samples, **settings)


def write_queries(
    name: str,
    generator: Generator,
    judge: Generator | None,
    queries_per_document: int,
    seed: int,
    corpus: Step | Output,
    train: Output | None = None,
    **settings: Any,
) -> Step:
    """Return distinct queries for documents of a corpus, those that the judge accepts. train: real queries, shown as
    examples. settings: of `prepare_query_generation`."""
    samples = step(
        f"{name}/prepare",
        prepare_query_generation.JOB,
        corpus=corpus,
        train=train,
        seed=seed,
        **settings,
    )
    completions = answer(
        f"{name}/generate",
        generator,
        samples,
        num_completions=queries_per_document,
        temperature=0.7,  # as in Promptagator (Dai et al. 2023)
        max_new_tokens=64,
        seed=seed,
    )
    queries = step(f"{name}/clean", clean_queries.JOB, completions=completions, train=train)
    if judge is None:
        return queries
    asked = step(f"{name}/ask_judge", prepare_judgement.JOB, queries=queries, corpus=corpus)
    judged = answer(f"{name}/judge", judge, asked, max_new_tokens=8)
    return step(f"{name}/judged", filter_queries.JOB, queries=queries, judged=judged)


def add_synthetic_queries(
    loop: RetrievalLoop, embedder: Model | str, generator: Generator, queries_per_document: int
) -> Step:
    """Return the training queries of a loop, followed by synthetic ones that pass the round trip."""
    corpus, train = loop.prepared["corpus"], loop.prepared["train"]
    name = f"{loop.folder}synthetic"
    queries = write_queries(name, generator, None, queries_per_document, loop.seed, corpus, train)
    return filter_round_trip(loop, embedder, queries, train)


def filter_round_trip(
    loop: RetrievalLoop, embedder: Model | str, queries: Step | Output, train: Output | None
) -> Step:
    """Return the training queries `train`, followed by those of `queries` whose document the embedder, and the loop's
    teacher if it has one, rank high enough (see `filter_queries`)."""
    name = f"{loop.folder}synthetic"
    corpus = loop.prepared["corpus"]
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
