"""The score that orders documents, and how far from it a matrix multiplication may be.

    score(q, c) = the dot product of the float32 vectors, summed in float64, rounded once to float32

A multiplication gives it only up to rounding, and its rounding depends on the shapes that it is called with. So who
ranks documents (`search.py`, `ranks.py`) multiplies, and scores again by `dots` what is too close to tell.

Shapes: Q queries, N corpus rows, D dimensions, P (query, row) pairs.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from models.dot_kernel import dots_of_pairs
from models.errors import ModelError

Array = np.ndarray | torch.Tensor
Blocks = Array | Iterable[tuple[int, Array]]
"""A whole corpus, or (row of the block's first document, block_ND) in any order, without overlaps or holes."""


def dots(query_QD: torch.Tensor, query_P: np.ndarray, corpus_ND: torch.Tensor, row_P: np.ndarray) -> np.ndarray:
    """The score that defines the order, for P pairs: float32 [P]. Does not depend on which pairs are asked together."""
    out = np.empty(len(query_P), np.float32)
    dots_of_pairs(query_QD.numpy(), query_P, corpus_ND.numpy(), row_P, out)
    return out + np.float32(0)  # -0 becomes 0: they are equal, and must be equal as bits too


def rounding(dim: int) -> float:
    """Bound on |multiplied - exact| / (|q||c|) for one inner product of `dim` terms, summed in float32.

    Summation: min(d, 5 sqrt(d)) units of 2**-24; the root is Higham & Mary (2019), "A new approach to probabilistic
    rounding error analysis". This allows 98 units at d = 384; seen over 11 million products of random terms: 2; of
    equal terms, which all round to the same side: d/4 up to d = 384 and 50 units beyond. TF32, if torch was told to,
    rounds the operands too.
    """
    terms = min(float(dim), 5.0 * dim**0.5) + 4.0
    operands = {"highest": 0.0, "high": 2.0**-9, "medium": 2.0**-6}[torch.get_float32_matmul_precision()]
    return terms * 2.0**-24 + operands


def finite_rows(vectors: Array, where: str) -> tuple[torch.Tensor, torch.Tensor]:
    """float32 vectors [N, D] on the host and their lengths [N]; raises ModelError unless they are rows and finite."""
    tensor = torch.as_tensor(vectors)
    if tensor.ndim != 2:
        raise ModelError(f"{where}: shape {tuple(tensor.shape)}; expected rows x dimensions; stack the vectors as rows")
    tensor = tensor.detach().to("cpu", torch.float32).contiguous()
    norm_N = torch.linalg.vector_norm(tensor, dim=1)
    bad = torch.nonzero(~torch.isfinite(norm_N)).flatten()
    if len(bad):
        raise ModelError(
            f"{where}: row {int(bad[0])} ({len(bad)} rows in all) holds NaN, infinity or numbers beyond 1e19; expected "
            "finite embeddings; look for empty texts or overflow in float16 where they were computed"
        )
    return tensor, norm_N


@dataclass
class Corpus:
    """The blocks seen so far: what candidates are scored against again, and the bound on the multiplication's error."""

    query_QD: torch.Tensor
    rows: int = 0
    longest: float = 0.0
    blocks: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    query_norm_Q: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))

    def __post_init__(self) -> None:
        if len(self.query_norm_Q) != len(self.query_QD):
            self.query_norm_Q = torch.linalg.vector_norm(self.query_QD, dim=1).numpy()

    def anew(self) -> Corpus:
        """For the same queries, with no block yet."""
        return replace(self, rows=0, longest=0.0, blocks=[])

    def of_queries(self, offset: int, other: Corpus) -> Corpus:
        """For the same queries, with another's queries, which were checked, as the rows from `offset`."""
        made = replace(self, rows=len(other.query_QD), longest=0.0, blocks=[(offset, other.query_QD)])
        made._reach(float(other.query_norm_Q.max(initial=0.0)), f"corpus block at row {offset}")
        return made

    def add_all(self, corpus: Blocks, block_rows: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Every block, checked, remembered, and cut into pieces of at most `block_rows`."""
        for offset, block in [(0, corpus)] if isinstance(corpus, np.ndarray | torch.Tensor) else corpus:
            where = f"corpus block at row {offset}"
            block_ND, norm_N = finite_rows(block, where)
            if block_ND.shape[1] != self.query_QD.shape[1]:
                raise ModelError(
                    f"{where}: {block_ND.shape[1]} dimensions; expected the queries' {self.query_QD.shape[1]}; "
                    "embed both with the same model"
                )
            if not len(block_ND):
                continue
            if offset < 0 or offset + len(block_ND) > 2**32 - 1:
                raise ModelError(f"{where}: ends at row {offset + len(block_ND)}; expected rows from 0 below 2**32 - 1")
            self._reach(float(norm_N.max()), where)
            bisect.insort(self.blocks, (offset, block_ND), key=lambda block: block[0])
            self.rows += len(block_ND)
            for start in range(0, len(block_ND), block_rows):
                yield offset + start, block_ND[start : start + block_rows]

    def _reach(self, length: float, where: str) -> None:
        """Takes in how long rows are; raises ModelError where their products overflow."""
        self.longest = max(self.longest, length)
        if not self.longest * float(self.query_norm_Q.max(initial=0.0)) < 1e37:
            raise ModelError(f"{where}: vectors up to {self.longest:.3g} long; their products overflow; scale them")

    def check_complete(self, where: str) -> None:
        """Raises ModelError if blocks overlap or leave holes: a row would be missed or come twice."""
        end = 0 if not self.blocks else self.blocks[0][0]
        for offset, block in self.blocks:
            if offset != end:
                raise ModelError(
                    f"{where}: a corpus block begins at row {offset}; expected {end}, where the one before it ends; "
                    "give each block the row of its first document"
                )
            end = offset + len(block)

    def error(self, queries: slice | np.ndarray) -> np.ndarray:
        """Bound on a multiplied score's error, float32 [queries]. Scores closer than twice that may change places."""
        unit = rounding(self.query_QD.shape[1])
        return (unit * self.longest * self.query_norm_Q[queries] + 5e-31).astype(np.float32)

    def scores(self, query_P: np.ndarray, row_P: np.ndarray) -> np.ndarray:
        """The exact scores of pairs of any rows seen so far, float32 [P]."""
        offsets = np.array([offset for offset, _ in self.blocks], np.int64)
        block_P = np.searchsorted(offsets, row_P, side="right") - 1
        out = np.empty(len(row_P), np.float32)
        for number in np.unique(block_P):
            here = np.flatnonzero(block_P == number)
            out[here] = dots(self.query_QD, query_P[here], self.blocks[number][1], row_P[here] - offsets[number])
        return out


@contextmanager
def one_thread_each() -> Iterator[ThreadPoolExecutor]:
    """A pool of as many threads as torch has, each of which multiplies alone while the pool lives.

    Whole chunks per thread instead of all threads on each multiplication: no barrier per call to wait at (a factor of
    two where other processes want the cores too), and a chunk's scores stay in the cache of the core that selects."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Again in every thread: OpenMP keeps the number per thread.
        with ThreadPoolExecutor(max(1, threads), initializer=torch.set_num_threads, initargs=(1,)) as executor:
            yield executor
    finally:
        torch.set_num_threads(threads)


def multiply(query_QD: torch.Tensor, block_ND: torch.Tensor, kept: threading.local) -> torch.Tensor:
    """query_QD @ block_ND.T, valid until the same thread's next call with `kept`."""
    return torch.mm(query_QD, block_ND.T, out=buffered((len(query_QD), len(block_ND)), query_QD, kept))


def buffered(shape: tuple[int, int], like: torch.Tensor, kept: threading.local) -> torch.Tensor:
    """Memory for a matrix of the dtype and device of `like`, valid until the same thread's next call with `kept`.

    One buffer per thread: fresh memory for each product costs a quarter of the time in page faults."""
    size = shape[0] * shape[1]
    if getattr(kept, "buffer", None) is None or len(kept.buffer) < size:
        kept.buffer = torch.empty(size, dtype=like.dtype, device=like.device)
    return kept.buffer[:size].view(shape)
