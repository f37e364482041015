"""Implementation of `build_index`: builds a FAISS index, and measures its recall."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import torch

from ratchet.data.tables import read_shards, take_texts, write_table
from ratchet.data.vectors import read_blocks, take_rows
from ratchet.jobs.indexes.build_index import DOCUMENTS, INDEX, Config, Inputs
from ratchet.models.embedder import encoder
from ratchet.models.search.inverted_lists import VECTORS_PER_LIST
from ratchet.models.search.top_k import top_k
from ratchet.orchestrator.job_interface import Context, Progress, Result


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    threads = max(1, int(context.resources.cpus or 1))
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    documents = read_shards(inputs.texts, ["id", "text"])
    ids, random = documents["id"].combine_chunks(), np.random.default_rng(config.seed)

    def read() -> Iterator[tuple[int, np.ndarray]]:
        return read_blocks(inputs.vectors, ids)

    dim = next(read())[1].shape[1]
    index = make_index(config, dim, len(ids))
    if not index.is_trained:
        chosen = np.sort(random.permutation(len(ids))[: VECTORS_PER_LIST * faiss.extract_index_ivf(index).nlist])
        index.train(take_rows(read(), chosen))
    for at, block in read():
        index.add(block)
        context.progress(Progress(at + len(block), len(ids), "documents", "adding"))
    sample = np.sort(random.permutation(len(ids))[: config.samples])
    texts = take_texts(documents["text"], sample)
    query_QD = encoder.load(inputs.model, device="cpu").encode(texts, "query")
    exact_QK = top_k(query_QD, read(), config.k)[1]
    found_QK = index.search(query_QD, config.k)[1]
    recall = np.mean([len(set(own) & set(right)) / len(right) for own, right in zip(found_QK, exact_QK, strict=True)])
    faiss.write_index(index, str(context.out / INDEX))
    write_table(context.out / DOCUMENTS, documents)
    size = round((context.out / INDEX).stat().st_size / 1e6, 1)
    counts = {"documents": len(ids), "dimensions": dim, "megabytes": size}
    return Result({f"recall@{config.k}": round(float(recall), 4), **counts})


def make_index(config: Config, dim: int, rows: int) -> Any:
    """Return an empty FAISS index for inner products."""
    lists = min(rows, config.lists or max(1, round(4 * rows**0.5)))
    kinds = {"flat": "Flat", "ivf": f"IVF{lists},Flat", "hnsw": f"HNSW{config.links},Flat"}
    index: Any = faiss.index_factory(dim, kinds[config.kind], faiss.METRIC_INNER_PRODUCT)
    if config.kind == "ivf":
        parts = faiss.extract_index_ivf(index)
        parts.nprobe, parts.cp.seed = min(lists, config.probes), config.seed
    if config.kind == "hnsw":
        index.hnsw.efSearch = config.depth
    return index
