"""build_index: build a FAISS index of documents from their vectors, and measure its recall against exact search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from ratchet.jobs.model_checks import check_embedder_model
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.model_files import check_folder
from ratchet.orchestrator.job_interface import Job, Seed

INDEX, DOCUMENTS = "index.faiss", "documents.parquet"
"""Files of the output."""


@dataclass(frozen=True)
class Config:
    kind: Literal["flat", "ivf", "hnsw"] = "flat"
    """`flat`: exact search. `ivf`: search in the nearest lists of vectors only (IndexIVFFlat). `hnsw`: search in a
    graph (Malkov and Yashunin 2018); several threads build it, so each build differs slightly."""
    lists: Annotated[int, Ge(1)] | None = None
    """For `ivf`: number of lists (FAISS's nlist). None: 4 * sqrt(documents)."""
    probes: Annotated[int, Ge(1)] = 16
    """For `ivf`: number of lists that are searched per query (nprobe). More are slower and raise the recall."""
    links: Annotated[int, Ge(2)] = 32
    """For `hnsw`: number of neighbours per document (M). More take more memory and raise the recall."""
    depth: Annotated[int, Ge(1)] = 64
    """For `hnsw`: number of candidates kept during a search (efSearch). More are slower and raise the recall."""
    k: Annotated[int, Ge(1)] = 10
    """Number of documents per query for the recall, the metric `recall@K`."""
    samples: Annotated[int, Ge(1)] = 200
    """Number of documents whose texts serve as queries to measure the recall."""
    seed: Seed = 42
    """Seed of the sample of documents and of the training of `ivf`."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """The embedder that made the vectors. It embeds the queries that measure the recall."""
    vectors: Path
    """Vectors of the documents, as written by `embed`."""
    texts: Path
    """Shards of the documents."""


def check(config: Config, inputs: Inputs) -> None:
    if inputs.model is not None:
        check_folder(inputs.model)
        check_embedder_model(inputs.model, read_encoding_config(inputs.model))


JOB = Job(
    "build_index",
    config=Config,
    inputs=Inputs,
    resources=("cpus", "memory", "accelerator", "labels", "retries"),
    check=check,
    single_process=True,
    outputs=(INDEX, DOCUMENTS),
    metrics=lambda config: (f"recall@{config.k}", "documents", "dimensions", "megabytes"),
)
