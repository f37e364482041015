"""Approximate nearest neighbours by inner product, for corpora that are too large to compare each query with all of.

An inverted file (IndexIVFFlat of FAISS; Jégou, Douze and Schmid 2011, "Product quantization for nearest neighbor
search"): k-means splits the corpus into lists, and a query is compared with the vectors of the lists whose centres are
nearest. The vectors stay on disk, ordered by list, and are mapped into memory.

Shapes: Q queries, N corpus rows, D dimensions, K neighbours, S vectors of a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import numpy as np
from faiss.contrib.ondisk import merge_ondisk

from ratchet.models.search.top_k import merge_top_k

VECTORS_PER_LIST = 64
"""Vectors per list that k-means sees; FAISS warns below 39."""


def count_lists(rows: int) -> int:
    """Return the number of lists for so many rows: the root, so that a query compares with as many centres as with
    vectors of a list."""
    return max(1, round(rows**0.5))


def build_lists(vectors: Path, sample_SD: np.ndarray, blocks: Iterable[np.ndarray], lists: int, seed: int) -> Any:
    """Return an index of the rows of all blocks, numbered from 0 in their order, whose vectors are in the new file
    `vectors`; `faiss.write_index` writes the rest of it.

    sample_SD: float32, rows of the corpus for k-means. One block [n, D] float32 is in memory at a time; twice the bytes
    of the corpus are on disk until the lists are merged."""
    index: Any = faiss.index_factory(sample_SD.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = seed
    index.train(sample_SD)
    rows = 0
    with TemporaryDirectory(dir=vectors.parent, prefix=f"{vectors.name}.") as folder:
        parts = list[str]()
        for block_ND in blocks:
            index.add_with_ids(block_ND, np.arange(rows, rows + len(block_ND)))
            parts.append(os.path.join(folder, str(len(parts))))
            faiss.write_index(index, parts[-1])
            index.reset()
            rows += len(block_ND)
        merge_ondisk(index, parts, str(vectors))
    return index


def search_lists(index: Any, query_QD: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores float32 and rows int64, both [Q, min(k, N)], in the order of `top_k`. A query whose lists hold
    fewer is compared with all vectors."""
    k = min(k, index.ntotal)
    scores_QK, rows_QK = index.search(query_QD, k)
    short_q = np.flatnonzero(rows_QK[:, -1] < 0)
    if len(short_q):
        all_lists = faiss.SearchParametersIVF()
        all_lists.nprobe = index.nlist
        scores_QK[short_q], rows_QK[short_q] = index.search(query_QD[short_q], k, params=all_lists)
    return merge_top_k([(scores_QK, rows_QK)], k)


def choose_probes(
    index: Any, query_QD: np.ndarray, exact: tuple[np.ndarray, np.ndarray], min_recall: float
) -> tuple[int, int]:
    """Set the number of lists that are searched per query, to the fewest, by steps of a quarter, that find a share of
    `min_recall` of the exact neighbours of every other query of a sample. Return how many neighbours of the remaining
    queries are found, and how many there are.

    exact: the neighbours as `top_k` returns them. A document that scores like the last one counts as a neighbour."""
    index.nprobe = 1
    while True:
        counts = _count_found(index, query_QD[::2], exact[0][::2], exact[1][::2])
        if counts[0] >= min_recall * counts[1] or index.nprobe == index.nlist:
            break
        index.nprobe = min(index.nlist, index.nprobe + max(1, index.nprobe // 4))
    return _count_found(index, query_QD[1::2], exact[0][1::2], exact[1][1::2]) if len(query_QD) > 1 else counts


def _count_found(
    index: Any, query_QD: np.ndarray, exact_scores_QK: np.ndarray, exact_rows_QK: np.ndarray
) -> tuple[int, int]:
    scores_QK, rows_QK = search_lists(index, query_QD, exact_rows_QK.shape[1])
    is_found_QK = scores_QK >= exact_scores_QK[:, -1:]
    is_found_QK |= [np.isin(own, exact) for own, exact in zip(rows_QK, exact_rows_QK, strict=True)]
    return int(is_found_QK.sum()), exact_rows_QK.size
