"""build_index: build a FAISS index of documents from their vectors, and measure its recall against exact search."""

from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from ratchet.jobs.model_checks import check_embedder_model
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.model_files import check_folder
from ratchet.orchestrator.job_interface import (
    Context,
    Division,
    Job,
    Parents,
    PositiveInt,
    Progress,
    Result,
    Seed,
)

VECTORS_PER_LIST = 64
"""Sampled vectors per list for k-means; FAISS warns below 39."""
INDEX = "index.faiss"
DOCUMENTS = "documents.parquet"
"""Files of the output."""


@dataclass(frozen=True)
class Config:
    kind: Literal["flat", "ivf", "hnsw"] = "flat"
    """`flat`: exact search. `ivf`: search in the nearest lists of vectors only (IndexIVFFlat). `hnsw`: search in a
    graph (Malkov and Yashunin 2018); several threads build it, so each build differs slightly."""
    lists: PositiveInt | None = None
    """For `ivf`: number of lists (FAISS's nlist). None: 4 * sqrt(documents)."""
    probes: PositiveInt = 16
    """For `ivf`: number of lists that are searched per query (nprobe). More are slower and raise the recall."""
    links: Annotated[int, Ge(2)] = 32
    """For `hnsw`: number of neighbours per document (M). More take more memory and raise the recall."""
    depth: PositiveInt = 64
    """For `hnsw`: number of candidates kept during a search (efSearch). More are slower and raise the recall."""
    k: PositiveInt = 10
    """Number of documents per query for the recall, the metric `recall@K`."""
    samples: PositiveInt = 200
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


def check(config: Config, inputs: Inputs, parents: Parents) -> Result | None:
    if inputs.model is not None:
        check_folder(inputs.model)
        check_embedder_model(inputs.model, read_encoding_config(inputs.model))
    if divide(config, inputs).gpus:
        return Result(note="on machines with GPUs, faiss-gpu trains and fills the index on them")
    return None


def divide(config: Config, inputs: Inputs) -> Division:
    """Say whether GPUs help: in training and filling `ivf`, with a FAISS that has them."""
    return Division(gpus=config.kind == "ivf" and _is_installed("faiss-gpu"))


def _is_installed(distribution: str) -> bool:
    with suppress(PackageNotFoundError):
        return bool(version(distribution))
    return False


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import faiss
    import numpy as np
    import torch

    from ratchet.data.tables import read_shards, take_texts, write_table
    from ratchet.data.vectors import read_blocks, read_dim, take_rows
    from ratchet.models.embedder import encoder
    from ratchet.models.search.top_k import top_k

    gpus = context.resources.gpus and faiss.get_num_gpus()
    threads = context.resources.threads
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    documents = read_shards(inputs.texts, ["id", "text"])
    ids = documents["id"].combine_chunks()
    dim = read_dim(inputs.vectors)
    lists = min(len(ids), config.lists or max(1, round(4 * len(ids) ** 0.5)))
    kinds = {"flat": "Flat", "ivf": f"IVF{lists},Flat", "hnsw": f"HNSW{config.links},Flat"}
    index: Any = faiss.index_factory(dim, kinds[config.kind], faiss.METRIC_INNER_PRODUCT)
    random = np.random.default_rng(config.seed)
    if config.kind == "ivf":
        index.nprobe = min(lists, config.probes)
        index.cp.seed = config.seed
        chosen = np.sort(random.permutation(len(ids))[: VECTORS_PER_LIST * lists])
        if gpus:
            index.clustering_index = _put_on_gpus(faiss.IndexFlatIP(dim))
        index.train(take_rows(read_blocks(inputs.vectors, ids), chosen))
        index.clustering_index = None
    if config.kind == "hnsw":
        index.hnsw.efSearch = config.depth
    filled = _put_on_gpus(index) if gpus else index
    for at, block in read_blocks(inputs.vectors, ids):
        filled.add(block)
        context.progress(Progress(at + len(block), len(ids), "documents", "adding"))
    if gpus:
        index = faiss.index_gpu_to_cpu(filled)
    faiss.write_index(index, str(context.out / INDEX))
    write_table(context.out / DOCUMENTS, documents)

    sample = np.sort(random.permutation(len(ids))[: config.samples])
    texts = take_texts(documents["text"], sample)
    query_QD = encoder.load(inputs.model, device="cpu").encode(texts, "query")
    exact_QK = top_k(query_QD, read_blocks(inputs.vectors, ids), config.k)[1]
    found_QK = index.search(query_QD, config.k)[1]
    common = sum(len(np.intersect1d(*rows)) for rows in zip(found_QK, exact_QK, strict=True))
    size = round((context.out / INDEX).stat().st_size / 1e6, 1)
    return Result(
        {
            f"recall@{config.k}": round(common / exact_QK.size, 4),
            "documents": len(ids),
            "dimensions": dim,
            "megabytes": size,
        }
    )


def _put_on_gpus(index: Any) -> Any:
    """Return a copy of an index on all GPUs that the process sees, each with a part of the vectors."""
    import faiss

    options = faiss.GpuMultipleClonerOptions()
    options.shard = True
    return faiss.index_cpu_to_all_gpus(index, options)


JOB = Job(
    "build_index",
    Config,
    Inputs,
    run,
    resources=("cpus", "gpus", "memory", "accelerator", "labels", "retries"),
    divide=divide,
    check=check,
    outputs=(INDEX, DOCUMENTS),
    metrics=lambda config: (f"recall@{config.k}", "documents", "dimensions", "megabytes"),
)
