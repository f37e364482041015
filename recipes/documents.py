"""Finetune a retriever on documents alone: a language model writes the queries."""

from dataclasses import replace
from typing import Annotated, Literal

from annotated_types import Interval

from ratchet.errors import InputError
from ratchet.jobs.documents import chunk_documents, write_beir
from ratchet.jobs.retrieval import prepare
from ratchet.orchestrator.step import Fraction, Seed, Source, Summary, step
from ratchet.recipes.parts.models import choose_model
from ratchet.recipes.parts.retrieval_loop import RetrievalLoop
from ratchet.recipes.parts.synthetic_queries import (
    choose_generator,
    filter_round_trip,
    write_queries,
)


def documents(
    *,
    data: str,
    generator: str = "",
    judge: str = "",
    queries: str = "",
    base: str = "sentence-transformers/all-MiniLM-L6-v2",
    queries_per_document: Annotated[int, Interval(ge=1, le=1000)] = 2,
    multi_hop: Fraction = 0.0,
    method: Literal["lora", "full"] = "lora",
    iterations: Annotated[int, Interval(ge=0, le=1000)] = 1,
    seed: Seed = 42,
) -> Summary:
    """Divide documents into chunks, write queries for them, and iterate mining and finetuning on these.

    Held-out queries are those of documents that no training query has. Synthetic training queries are kept if a search
    with the base ranks their chunk first.

    data        a document, or a folder of Markdown, text, HTML, PDF, Word, EPUB and notebook files
    generator   a causal language model that writes queries: a folder, a hub id, or the URL of an OpenAI-compatible API
                (http://localhost:8000/v1; generate_api.model is the model's name there, and OPENAI_API_KEY the key)
    judge       a language model that scores queries, given likewise; those below filter_queries.least_score are left
                out. Empty: none
    queries     real queries, JSON Lines, CSV or Parquet with `query` and `document` (the path of a file in the folder)
                or `positive` (a text in it). With them, only real queries are held out
    base        the embedder to finetune: a folder or a hub id
    queries_per_document  number of queries that the generator writes for each chunk
    multi_hop   for this fraction of the chunks, ask also for a question that needs two chunks of a document
    method      lora (train LoRA adapters), or full (train all weights, with a lower default learning rate)
    iterations  number of iterations of mining and finetuning; 0: only evaluate
    seed        seed of the prompts, the split, mining and training"""
    if not generator and not queries:
        raise InputError(
            "generator: nothing given; expected a language model that writes queries, or real ones; add --set"
            " generator=MODEL or --set queries=FILE"
        )
    model = choose_model(base)
    chunks = step("chunks", chunk_documents.JOB, documents=Source.find(data), model=model)
    written = None
    if generator:
        written = write_queries(
            "synthetic",
            choose_generator(generator),
            choose_generator(judge) if judge else None,
            queries_per_document,
            seed,
            chunks,
            documents="all",
            num_examples=0,
            multi_hop=multi_hop,
        )
    real = Source.find(queries, "queries") if queries else None
    folder = step("questions", write_beir.JOB, corpus=chunks, queries=written, real=real)
    prepared = step("prepare", prepare.JOB, data=(folder,), seed=seed)
    loop = RetrievalLoop(prepared=prepared, embedder=model, method=method, knn=False, seed=seed)
    if generator:
        loop = replace(loop, train=filter_round_trip(loop, model, prepared["train"], None))
    return loop.build_summary(model, iterations)
