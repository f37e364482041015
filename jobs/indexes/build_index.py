"""build_index: vectors of documents -> a FAISS index with the documents, and its recall against exact search."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from ratchet.models.model_files import check_folder
from ratchet.models.model_kind import check_embedder
from ratchet.orchestrator.job_interface import Job, Seed

INDEX, DOCUMENTS = "index.faiss", "documents.parquet"
"""Files of the output."""


@dataclass(frozen=True)
class Config:
    kind: Literal["flat", "ivf", "hnsw"] = "flat"
    """`flat` compares with all vectors. `ivf` compares with those of some of many lists (IndexIVFFlat), `hnsw` walks a
    graph of neighbours (Malkov and Yashunin 2018; built by several threads, so that no two are the same)."""
    lists: Annotated[int, Ge(1)] | None = None
    """Lists of `ivf`. None: 4 * sqrt(documents)."""
    probes: Annotated[int, Ge(1)] = 16
    """Lists that `ivf` searches per query."""
    links: Annotated[int, Ge(2)] = 32
    """Neighbours per document of `hnsw`."""
    depth: Annotated[int, Ge(1)] = 64
    """Candidates that `hnsw` keeps during a search."""
    k: Annotated[int, Ge(1)] = 10
    """The recall is that of so many documents per query."""
    samples: Annotated[int, Ge(1)] = 200
    """Documents whose texts are the queries that measure the recall."""
    seed: Seed = 42
    """Seed of the sample and of the training of `ivf`."""


@dataclass(frozen=True)
class Inputs:
    model: Path
    """The embedder of the vectors, which embeds the queries that measure the recall."""
    vectors: Path
    """Vectors of the documents, as written by `embed`."""
    texts: Path
    """Shards of the documents."""


def check(config: Config, inputs: Inputs) -> None:
    if inputs.model is not None:
        check_folder(inputs.model)
        check_embedder(inputs.model)


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
