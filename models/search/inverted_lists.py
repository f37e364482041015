"""Approximate nearest neighbours by inner product, for corpora that are too large for an exhaustive search.

An inverted file (IndexIVFFlat of FAISS; Jégou, Douze and Schmid 2011, "Product quantization for nearest neighbor
search"): k-means splits the corpus into lists, and a query is compared with the vectors of the lists whose centres are
nearest. The vectors stay on disk, ordered by list, and are mapped into memory.

FAISS searches query by query, and reads a list again for each query. `search_lists` goes list by list, and multiplies
each list by all queries that need it: 7 times as fast for 4,096 queries and a million vectors.

Shapes: Q queries, N corpus rows, D dimensions, K neighbours, L lists, S vectors of a sample; q queries and n vectors of
a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from faiss.contrib.inspect_tools import get_invlist

from ratchet.models.search.top_k import EMPTY, decode_rows, decode_scores, encode_keys, estimate_kth, select_reaching

VECTORS_PER_LIST = 64
"""Sampled vectors per list for k-means; FAISS warns below 39."""
ROW_BYTES = 8
"""Bytes of a row number in a list."""
ROWS_AT_ONCE = 4096
"""Vectors of a list that are multiplied at a time."""


def count_lists(rows: int) -> int:
    """Return the number of lists for so many rows: the square root, so that a query is compared with as many centres as
    vectors of a list."""
    return max(1, round(rows**0.5))


def build_lists(
    vectors: Path, sample_SD: np.ndarray, read: Callable[[], Iterable[np.ndarray]], lists: int, seed: int
) -> Any:
    """Build an index of the rows of all blocks, numbered from 0 in their order. Its vectors are in the new file
    `vectors`; `faiss.write_index` writes the rest of it.

    sample_SD: float32, rows of the corpus for k-means. read: returns the blocks [n, D] float32, one of which is in
    memory at a time, besides 4 bytes per row. It is called twice: the first pass finds the list of each row, the second
    one writes each row to its place. FAISS's `merge_ondisk` maps a file per block and copies small pieces of all: with
    little memory, the kernel drops what it read ahead before it is used, and reads it again and again."""
    faiss.omp_set_num_threads(torch.get_num_threads())
    index: Any = faiss.index_factory(sample_SD.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = seed
    index.train(sample_SD)
    list_N = np.concatenate([index.quantizer.search(block_ND, 1)[1][:, 0].astype(np.int32) for block_ND in read()])
    size_L = np.bincount(list_N, minlength=lists)
    width = index.code_size
    held: Any = faiss.OnDiskInvertedLists(lists, width, str(vectors))
    held.set_all_lists_sizes(faiss.swig_ptr(size_L.view(np.uint64)))  # a pointer: a copy would be freed before the call
    held.update_totsize(len(list_N) * (width + ROW_BYTES))
    begin_L = (np.cumsum(size_L) - size_L) * (width + ROW_BYTES)  # of a list: its vectors, then their rows
    vector_at_L = begin_L
    row_at_L = begin_L + size_L * width
    rows = 0
    with vectors.open("r+b") as file:
        for block_ND in read():
            list_n = list_N[rows : rows + len(block_ND)]
            order_n = np.argsort(list_n, kind="stable")
            vector_nD = block_ND[order_n]
            row_n = order_n + rows
            count_L = np.bincount(list_n, minlength=lists)
            for number, end in zip(np.flatnonzero(count_L), np.cumsum(count_L[count_L > 0]), strict=True):
                some = slice(end - count_L[number], end)
                for places, values in ((vector_at_L, vector_nD), (row_at_L, row_n)):
                    file.seek(places[number])
                    file.write(values[some].data)
            vector_at_L = vector_at_L + count_L * width
            row_at_L = row_at_L + count_L * ROW_BYTES
            rows += len(block_ND)
    index.replace_invlists(held, True)
    held.this.disown()
    index.ntotal = rows
    return index


def choose_probes(index: Any, query_QD: np.ndarray, nearest_QKD: np.ndarray, min_recall: float) -> tuple[int, int]:
    """Set `index.nprobe`, the number of lists searched per query, to the smallest with which they hold a fraction of
    `min_recall` of the nearest neighbours of every second query. Return (neighbours of the remaining queries that the
    searched lists hold, all neighbours of the remaining queries).

    query_QD: a sample, float32. nearest_QKD: the vectors of its exact nearest neighbours, float32."""
    order_QL = index.quantizer.search(query_QD, index.nlist)[1]
    place_QL = np.argsort(order_QL, axis=1)
    list_QK = index.quantizer.search(nearest_QKD.reshape(-1, query_QD.shape[1]), 1)[1].reshape(len(query_QD), -1)
    place_QK = np.take_along_axis(place_QL, list_QK, axis=1)
    chosen = np.sort(place_QK[::2], axis=None)
    index.nprobe = int(chosen[int(np.ceil(min_recall * len(chosen))) - 1]) + 1
    if len(query_QD) > 1:
        rest = place_QK[1::2]
    else:
        rest = place_QK
    return int((rest < index.nprobe).sum()), rest.size


def search_lists(index: Any, query_QD: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores float32 and rows int64, both [Q, min(k, N)], in the order of `top_k`. The scores are those of a
    multiplication in float32. A query whose lists hold fewer than k rows is compared with all rows."""
    k = min(k, index.ntotal)
    keys_QK = _search(index, query_QD, k, index.nprobe)
    short_q = np.flatnonzero(keys_QK[:, -1] == EMPTY)
    if len(short_q):
        keys_QK[short_q] = _search(index, query_QD[short_q], k, index.nlist)
    return decode_scores(keys_QK), decode_rows(keys_QK)


def _search(index: Any, query_QD: np.ndarray, k: int, probes: int) -> np.ndarray:
    """Return keys [Q, k] (`encode_keys`), best first; EMPTY where the lists of a query hold fewer rows."""
    list_Qp = index.quantizer.search(query_QD, probes)[1]
    by_list = np.argsort(list_Qp, axis=None, kind="stable")
    ends = np.searchsorted(list_Qp.ravel()[by_list], np.arange(index.nlist + 1))
    best = _Best(len(query_QD), k)
    query = torch.from_numpy(query_QD)
    for number in np.flatnonzero(np.diff(ends)).tolist():
        query_q = by_list[ends[number] : ends[number + 1]] // probes
        row_n, codes = get_invlist(index.invlists, number)
        query_qD = query[torch.from_numpy(query_q)]
        vector_nD = codes.view(np.float32).reshape(-1, query.shape[1])
        for start in range(0, len(row_n), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            best.add(query_q, torch.mm(query_qD, torch.from_numpy(vector_nD[some]).T), row_n[some])
    best.cut(np.arange(len(query_QD)))
    return best.keys_QW[:, :k]


class _Best:
    """The documents of each query that may be among its k best, as keys, sorted and cut when there are many."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.keys_QW = np.full((queries, 4 * k), EMPTY)
        self.count_Q = np.zeros(queries, np.int64)
        self.floor_Q = np.full(queries, -np.inf, np.float32)
        """At least k documents of a query have this score or a higher one."""

    def add(self, query_q: np.ndarray, scores_qn: torch.Tensor, row_n: np.ndarray) -> None:
        """Add documents for some queries."""
        fresh_q = np.flatnonzero(np.isneginf(self.floor_Q[query_q]))
        if self.k < len(row_n) and len(fresh_q):
            self.floor_Q[query_q[fresh_q]] = estimate_kth(scores_qn[torch.from_numpy(fresh_q)], self.k)
        at, column, score = select_reaching(scores_qn, self.floor_Q[query_q])
        new_q = np.bincount(at, minlength=len(query_q))
        self.cut(query_q[self.count_Q[query_q] + new_q > self.keys_QW.shape[1]])
        first_q = self.count_Q[query_q]
        missing = int((first_q + new_q).max()) - self.keys_QW.shape[1]
        if missing > 0:
            self.keys_QW = np.pad(self.keys_QW, ((0, 0), (0, missing)), constant_values=EMPTY)
        place = np.arange(len(at)) + (first_q - np.cumsum(new_q) + new_q)[at]
        self.keys_QW[query_q[at], place] = encode_keys(score, row_n[column])
        self.count_Q[query_q] += new_q

    def cut(self, query_q: np.ndarray) -> None:
        """Keep the k best of some queries, in order."""
        keys_qW = np.sort(self.keys_QW[query_q], axis=1)
        keys_qW[:, self.k :] = EMPTY
        self.keys_QW[query_q] = keys_qW
        self.count_Q[query_q] = np.minimum(self.count_Q[query_q], self.k)
        # fmax: EMPTY decodes to NaN, where there are fewer than k.
        self.floor_Q[query_q] = np.fmax(self.floor_Q[query_q], decode_scores(keys_qW[:, self.k - 1]))
