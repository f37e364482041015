"""Embed your own texts: vectors as Arrow files and as a NumPy array."""

from typing import Literal

from ratchet.jobs.predictions import prepare_queries
from ratchet.jobs.retrieval import embed as embedding
from ratchet.jobs.retrieval.datasets import find_queries
from ratchet.orchestrator.step import Output, Row, Summary, step
from ratchet.recipes.parts.models import choose_model


def embed(*, model: str, texts: str, role: Literal["query", "passage"] = "passage") -> Summary:
    """Embed texts, and write shard-00000.arrow and so on (columns id and embedding), embeddings.npy and ids.txt.

    model       an embedder: a folder, a hub id, or a model of a run (`ratchet models` lists them)
    texts       JSONL, CSV or Parquet with `text` (or `query`) and optionally `id`, or with columns that are named
                behind the path (docs.csv?text=body&id=sku), or a text file with a text per line
    role        the prompt template of the model to apply: passage (for documents) or query"""
    prepared = step("prepare", prepare_queries.JOB, **find_queries(texts, "texts", ()))
    vectors = step(
        "embed", embedding.JOB, model=choose_model(model), texts=prepared, role=role, npy=True
    )
    columns = {name: vectors.metric(name) for name in ("rows", "dim", "tokens")}
    return Summary([Row(model, columns, [vectors])], results={"vectors": Output(vectors)})
