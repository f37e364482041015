"""The exact score that orders documents, and a bound on the error of a matrix multiplication.

    score(q, c) = the dot product of the float32 vectors, summed in float64, rounded once to float32

The result of a matrix multiplication is rounded, in a way that depends on its shapes. Therefore `top_k.py` and
`ranks.py` multiply first, and compute the exact score (`compute_exact_scores`) where the error bound leaves the order
open.

Shapes: Q queries, N corpus rows, D dimensions, P (query, row) pairs.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from ratchet.errors import ModelError
from ratchet.models.search.kernels import dot_pairs

Array = np.ndarray | torch.Tensor
Blocks = Array | Iterable[tuple[int, Array]]
"""A whole corpus, or blocks (index of the first row, block_ND) in any order, without overlaps or gaps. Rows are below
2**32 - 1."""


OPERANDS = {"tf32": 2.0**-9, "bf16": 2.0**-6}
"""Format of the operands of a multiplication -> bound on the relative error that their rounding adds."""
LONGEST = 3e18
"""Bound on the length of a vector: products, and their error bounds, stay within float32."""


def compute_exact_scores(
    query_QD: torch.Tensor, query_P: np.ndarray, corpus_ND: torch.Tensor, row_P: np.ndarray
) -> np.ndarray:
    """Return the exact scores of P pairs, float32 [P]. Each depends on its own pair only."""
    out = np.empty(len(query_P), np.float32)
    dot_pairs(query_QD.numpy(), query_P, corpus_ND.numpy(), row_P, out)
    return out + np.float32(0)  # -0 becomes 0: they are equal, and must be equal as bits too


def bound_rounding(dim: int) -> float:
    """Return a bound on |multiplied - exact| / (|q||c|) for an inner product of `dim` terms summed in float32.

    Summation: min(d, 5 sqrt(d)) + 4 units of 2**-24; the root is Higham & Mary (2019), "A new approach to probabilistic
    rounding error analysis". At d = 384 that is 102 units. Observed over 11 million products of random terms: 2 units;
    of equal terms, which all round to the same side: d/4 up to d = 384, and 50 units beyond. TF32 and bfloat16 round
    the operands too, if torch or CUDA's variable NVIDIA_TF32_OVERRIDE enables them.
    """
    terms = min(float(dim), 5.0 * dim**0.5) + 4.0
    backends: tuple[Any, Any] = torch.backends.cuda, torch.backends.mkldnn
    formats = set()
    for backend in backends:
        formats.add(backend.matmul.fp32_precision)
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "1":
        formats |= {"tf32"}
    return terms * 2.0**-24 + max(OPERANDS.get(name, 0.0) for name in formats)


def check_finite(vectors: Array, where: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the vectors [N, D] on the CPU in float32, and their norms [N]. Raises ModelError for values that are not
    finite, or so large that products overflow."""
    tensor = torch.as_tensor(vectors).detach().to("cpu", torch.float32).contiguous()
    norm_N = torch.linalg.vector_norm(tensor, dim=1)
    bad = torch.nonzero(~(norm_N < LONGEST)).flatten()
    if len(bad):
        raise ModelError(
            f"{where}: row {int(bad[0])} ({len(bad)} rows in all) holds NaN, infinity or numbers beyond {LONGEST:g}; "
            "expected finite embeddings; look for empty texts or overflow in float16 where they were computed"
        )
    return tensor, norm_N


class Corpus:
    """The corpus blocks that were added so far: their exact scores, and the error bound of a multiplication."""

    def __init__(self, query_QD: torch.Tensor, query_norm_Q: torch.Tensor) -> None:
        """query_QD, query_norm_Q: the queries and their norms, as `check_finite` returns them."""
        self.query_QD = query_QD
        self.query_norm_Q = query_norm_Q.numpy()
        self.rows = 0
        self.longest = 0.0
        self.blocks: list[tuple[int, torch.Tensor]] = []

    def add(self, offset: int, block: Array) -> torch.Tensor:
        """Check and store a block. Return it as `check_finite` does."""
        where = f"corpus block at row {offset}"
        block_ND, norm_N = check_finite(block, where)
        if block_ND.shape[1] != self.query_QD.shape[1]:
            raise ModelError(
                f"{where}: {block_ND.shape[1]} dimensions; expected the queries' {self.query_QD.shape[1]}; "
                "embed both with the same model"
            )
        if not len(block_ND):
            return block_ND
        self.longest = max(self.longest, float(norm_N.max()))
        bisect.insort(self.blocks, (offset, block_ND), key=lambda block: block[0])
        self.rows += len(block_ND)
        return block_ND

    def add_all(self, corpus: Blocks, block_rows: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Check and store each block, and yield it in pieces of at most `block_rows` rows."""
        for offset, block in iterate_blocks(corpus):
            block_ND = self.add(offset, block)
            for start in range(0, len(block_ND), block_rows):
                yield offset + start, block_ND[start : start + block_rows]

    def bound_error(self, queries: slice | np.ndarray) -> np.ndarray:
        """Return a bound on the error of multiplied scores, float32 [queries]. Scores that differ by less than twice
        the bound may be in either order."""
        unit = bound_rounding(self.query_QD.shape[1])
        return (unit * self.longest * self.query_norm_Q[queries] + 5e-31).astype(np.float32)

    def compute_scores(self, query_P: np.ndarray, row_P: np.ndarray) -> np.ndarray:
        """Return the exact scores of pairs with any stored rows, float32 [P]."""
        offsets = np.array([offset for offset, _ in self.blocks], np.int64)
        block_P = np.searchsorted(offsets, row_P, side="right") - 1
        out = np.empty(len(row_P), np.float32)
        for number in np.unique(block_P):
            here = np.flatnonzero(block_P == number)
            out[here] = compute_exact_scores(
                self.query_QD, query_P[here], self.blocks[number][1], row_P[here] - offsets[number]
            )
        return out


def iterate_blocks(corpus: Blocks) -> Iterable[tuple[int, Array]]:
    """Return the blocks of a corpus: a whole matrix is one block."""
    if isinstance(corpus, np.ndarray | torch.Tensor):
        return [(0, corpus)]
    return corpus


@contextmanager
def single_threaded_pool(device: str | torch.device = "cpu") -> Iterator[ThreadPoolExecutor]:
    """Context manager: a pool of as many threads as torch uses, each of which runs torch on one thread.

    For a GPU the pool has two threads: one waits for the GPU, which both share, while the other one counts on the host.
    More would only hold more buffers in its memory.

    Each thread multiplies whole chunks. If all threads shared each multiplication, they would wait at a barrier per
    call (a factor of two if other processes use the cores too), and a chunk's scores would leave the core's cache."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # Again in every thread: OpenMP keeps the number per thread.
        width = max(1, threads if torch.device(device).type == "cpu" else min(2, threads))
        with ThreadPoolExecutor(width, initializer=torch.set_num_threads, initargs=(1,)) as executor:
            yield executor
    finally:
        torch.set_num_threads(threads)


def multiply_all(
    query_QD: torch.Tensor,
    chunks: Sequence[slice | torch.Tensor],
    pieces: Iterable[tuple[int, torch.Tensor]],
    device: str,
    use: Callable[[int, int, torch.Tensor], None],
) -> None:
    """Multiply each chunk of the queries by each piece of a corpus, and call use(number of the chunk, row of the piece,
    product [q, n]), which may change the product. Chunks are processed in parallel, pieces one after the other."""
    there_QD = query_QD.to(device)
    kept = threading.local()
    with single_threaded_pool(device) as executor:
        for offset, piece in pieces:
            piece_ND = piece.to(device)

            def use_chunk(number: int, offset: int = offset, piece_ND: torch.Tensor = piece_ND) -> None:
                use(number, offset, multiply(there_QD[chunks[number]], piece_ND, kept))

            list(executor.map(use_chunk, range(len(chunks))))


def multiply(query_QD: torch.Tensor, block_ND: torch.Tensor, kept: threading.local) -> torch.Tensor:
    """Return query_QD @ block_ND.T, valid until the next call of the same thread with `kept`.

    Each thread reuses one buffer: new memory for each product costs a quarter of the time in page faults.
    """
    size = len(query_QD) * len(block_ND)
    if getattr(kept, "buffer", None) is None or len(kept.buffer) < size:
        kept.buffer = torch.empty(size, dtype=query_QD.dtype, device=query_QD.device)
    return torch.mm(query_QD, block_ND.T, out=kept.buffer[:size].view(len(query_QD), len(block_ND)))
