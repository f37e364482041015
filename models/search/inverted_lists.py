"""Approximate nearest neighbours by inner product, for corpora that are too large for an exhaustive search.

An inverted file (IndexIVFFlat of FAISS; Jégou, Douze and Schmid 2011, "Product quantization for nearest neighbor
search"): k-means splits the corpus into lists, and a query is compared with the vectors of the lists whose centres are
nearest.

Shapes: Q queries, D dimensions, K neighbours, L lists, S vectors of a sample; n vectors of a block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import faiss
import numpy as np
import torch

VECTORS_PER_LIST = 64
"""Sampled vectors per list for k-means; FAISS warns below 39."""


def count_lists(rows: int) -> int:
    """Return the number of lists for so many rows: the square root, so that a query is compared with as many centres as
    vectors of a list."""
    return max(1, round(rows**0.5))


def build_lists(sample_SD: np.ndarray, blocks: Iterable[np.ndarray], lists: int, seed: int) -> Any:
    """Return an index of the rows of all blocks [n, D], numbered from 0 in their order. It is in memory.

    sample_SD: float32, rows of the corpus for k-means."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    index: Any = faiss.index_factory(
        sample_SD.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT
    )
    index.cp.seed = seed
    index.train(sample_SD)
    for block_nD in blocks:
        index.add(block_nD)
    return index


def choose_probes(
    index: Any, query_QD: np.ndarray, nearest_QKD: np.ndarray, min_recall: float
) -> tuple[int, int]:
    """Set `index.nprobe`, the number of lists searched per query, to the smallest with which they hold a fraction of
    `min_recall` of the nearest neighbours of every second query. Return (neighbours of the remaining queries that the
    searched lists hold, all neighbours of the remaining queries).

    query_QD: a sample, float32. nearest_QKD: the vectors of its exact nearest neighbours, float32."""
    order_QL = index.quantizer.search(query_QD, index.nlist)[1]
    place_QL = np.argsort(order_QL, axis=1)
    list_QK = index.quantizer.search(nearest_QKD.reshape(-1, query_QD.shape[1]), 1)[1].reshape(
        len(query_QD), -1
    )
    place_QK = np.take_along_axis(place_QL, list_QK, axis=1)
    chosen = np.sort(place_QK[::2], axis=None)
    index.nprobe = int(chosen[int(np.ceil(min_recall * len(chosen))) - 1]) + 1
    if len(query_QD) > 1:
        rest = place_QK[1::2]
    else:
        rest = place_QK
    return int((rest < index.nprobe).sum()), rest.size


def search_lists(index: Any, query_QD: np.ndarray, k: int) -> np.ndarray:
    """Return the rows of the min(k, N) nearest documents, int64 [Q, K]. A query whose lists hold fewer is compared with
    all documents."""
    k = min(k, index.ntotal)
    row_QK = index.search(query_QD, k)[1]
    short_q = np.flatnonzero(row_QK[:, -1] < 0)
    if len(short_q):
        everywhere: Any = faiss.SearchParametersIVF()
        everywhere.nprobe = index.nlist
        row_QK[short_q] = index.search(query_QD[short_q], k, params=everywhere)[1]
    return row_QK
