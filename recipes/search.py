"""Build a search index of your documents."""

from typing import Literal

from ratchet.jobs.indexes import build_index
from ratchet.jobs.predictions import prepare_queries
from ratchet.jobs.retrieval import embed
from ratchet.jobs.retrieval.datasets import find_queries
from ratchet.orchestrator.step import Output, Row, Summary, step
from ratchet.recipes.parts.models import choose_model


def search(
    *, model: str, documents: str, index: Literal["flat", "ivf", "hnsw"] = "flat"
) -> Summary:
    """Embed documents, build a FAISS index of them, and measure its recall against exact search.

    model       an embedder: a folder, a hub id, or a model of a run (`ratchet models` lists them)
    documents   JSONL, CSV or Parquet with `text` and optionally `id`, or with columns that are named behind the path
                (docs.csv?text=body&id=sku), or a text file with a document per line
    index       flat (exact), or ivf or hnsw (approximate, for millions of documents)"""
    folder = choose_model(model)
    texts = step("prepare", prepare_queries.JOB, **find_queries(documents, "documents", ()))
    vectors = step("embed", embed.JOB, model=folder, texts=texts)
    built = step(
        "build_index", build_index.JOB, model=folder, vectors=vectors, texts=texts, kind=index
    )
    columns = {}
    for name in (f"recall@{built.config.k}", "documents", "megabytes"):
        columns[name] = built.metric(name)
    return Summary(
        [Row(index, columns, [vectors, built])], results={"index": Output(built), "model": folder}
    )
