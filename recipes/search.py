"""Build a search index of your documents."""

from typing import Literal

from ratchet.jobs.documents.tables import is_address, refuse_empty_table
from ratchet.jobs.indexes import build_index
from ratchet.jobs.retrieval import embed
from ratchet.orchestrator.step import Output, Row, Summary, step
from ratchet.recipes.parts.documents import prepare_documents
from ratchet.recipes.parts.models import choose_model


def search(
    *, model: str, documents: str, index: Literal["flat", "ivf", "hnsw"] = "flat"
) -> Summary:
    """Embed documents, build a FAISS index of them, and measure its recall against exact search.

    model       an embedder: a folder, a hub id, or a model of a run (`ratchet models` lists them)
    documents   JSONL, CSV or Parquet with `text` and optionally `id`, or with columns that are named behind the path
                (docs.csv?text=body&id=sku), a text file with a document per line, a folder of documents, which are
                divided into chunks, or a table that `embed` has written, such as lancedb://FOLDER/TABLE
    index       flat (exact), or ivf or hnsw (approximate, for millions of documents)"""
    folder = choose_model(model)
    if is_address(documents):
        refuse_empty_table("documents", documents)
        return Summary([], results={"model": folder})
    texts = prepare_documents(documents, "documents", folder)
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
