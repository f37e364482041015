"""Embed your own texts: vectors as Arrow files and as a NumPy array, or in a database."""

from typing import Literal

from ratchet.errors import InputError
from ratchet.jobs.documents import write_vectors
from ratchet.jobs.documents.tables import Dtype
from ratchet.jobs.predictions import prepare_queries
from ratchet.jobs.retrieval import embed as embedding
from ratchet.jobs.retrieval.datasets import find_queries
from ratchet.orchestrator.step import Output, Row, Summary, step
from ratchet.recipes.parts.documents import prepare_documents, write_table
from ratchet.recipes.parts.models import choose_model


def embed(
    *,
    model: str,
    texts: str,
    role: Literal["query", "passage"] = "passage",
    to: str = "",
    dtype: Dtype = "float32",
) -> Summary:
    """Embed texts into a folder, or keep a table of a database up to date.

    A folder has shard-00000.arrow and so on (columns id and embedding), embeddings.npy and ids.txt. A table has all
    columns of the texts.

    model       an embedder: a folder, a hub id, or a model of a run (`ratchet models` lists them)
    texts       JSONL, CSV or Parquet with `text` and optionally `id`, or with columns that are named behind the path
                (docs.csv?text=body&id=sku), a text file with a text per line, or a folder of documents, which are
                divided into chunks
    role        the prompt template of the model to apply: passage (for documents) or query
    to          lancedb://FOLDER/TABLE, qdrant://FOLDER/COLLECTION, qdrant://HOST:PORT/COLLECTION,
                pgvector://USER@HOST/DATABASE/TABLE or parquet://FOLDER: only documents that are new or changed are
                embedded and written, and those that are gone are removed. Empty: none
    dtype       what the table stores vectors as: float32, float16, int8 or binary. The recall that this costs is
                measured on a sample"""
    folder = choose_model(model)
    if to:
        if role != "passage":
            raise InputError(f"role: {role} given, with to; expected passage; leave it out")
        written = write_table(prepare_documents(texts, "texts", folder), folder, to, dtype)
        selected = written.parents[0]
        columns = {name: selected.metric(name) for name in ("documents", "new", "changed")}
        columns["removed"] = written.metric("removed")
        if dtype != "float32":
            columns[write_vectors.RECALL] = written.metric(write_vectors.RECALL)
        return Summary([Row(to, columns, [selected, written])])
    if dtype != "float32":
        raise InputError(
            f"dtype: {dtype} given, without to; expected a table; add it, or set embed.storage_dtype"
        )
    if role == "query":
        prepared = step("prepare", prepare_queries.JOB, **find_queries(texts, "texts", ()))
    else:
        prepared = prepare_documents(texts, "texts", folder)
    vectors = step("embed", embedding.JOB, model=folder, texts=prepared, role=role, npy=True)
    columns = {name: vectors.metric(name) for name in ("rows", "dim", "tokens")}
    return Summary([Row(model, columns, [vectors])], results={"vectors": Output(vectors)})
