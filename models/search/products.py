"""Inner products of queries with a corpus that is read in blocks, one tile of scores after the other.

A score is the inner product of two float32 vectors, computed in float64 and rounded to float32. Products in float32
would depend on the shapes of the multiplied matrices: equal documents would get different scores, and a document's rank
in a search would differ from its counted rank.

Shapes: Q queries, N corpus rows, D dimensions; q queries and n rows of a tile.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch

from ratchet.errors import ModelError

Blocks = Iterable[tuple[int, np.ndarray]]
"""Blocks of a corpus, (index of the first row, [n, D]), in any order. Rows are below 2**31."""
Tile = tuple[slice, int, torch.Tensor]
"""(queries, corpus row of the first column, scores [q, n] float32)."""

QUERIES_AT_ONCE = 512
ROWS_AT_ONCE = 4096
"""Size of a tile."""


def multiply(
    query_QD: np.ndarray, corpus: Blocks, device: str = "cpu", exclude_Q: np.ndarray | None = None
) -> Iterator[Tile]:
    """Yield the scores of all queries with all rows of the corpus, in tiles on `device`.

    exclude_Q: a corpus row per query whose score is -inf (the query itself), -1 for none. Raises ModelError for vectors
    that are not finite, or of different dimensions."""
    queries = _check(query_QD, "queries").to(device)
    for offset, block in corpus:
        where = f"corpus block at row {offset}"
        block_ND = _check(block, where)
        if block_ND.shape[1] != queries.shape[1]:
            raise ModelError(
                f"{where}: {block_ND.shape[1]} dimensions; expected the queries' {queries.shape[1]}; "
                "embed both with the same model"
            )
        for start in range(0, len(block_ND), ROWS_AT_ONCE):
            rows_nD = block_ND[start : start + ROWS_AT_ONCE].to(device, torch.float64)
            for first in range(0, len(queries), QUERIES_AT_ONCE):
                some = slice(first, min(first + QUERIES_AT_ONCE, len(queries)))
                scores_qn = (queries[some].double() @ rows_nD.T).float()
                if exclude_Q is not None:
                    exclude(scores_qn, exclude_Q[some] - offset - start)
                yield some, offset + start, scores_qn


def exclude(scores_qn: torch.Tensor, column_q: np.ndarray) -> None:
    """Set one score per row to -inf, where `column_q` is a column of the tile."""
    inside = np.flatnonzero((column_q >= 0) & (column_q < scores_qn.shape[1]))
    scores_qn[torch.from_numpy(inside), torch.from_numpy(column_q[inside])] = -torch.inf


def _check(vectors: np.ndarray, where: str) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(vectors, np.float32))  # a copy: mapped vectors are read-only
    bad = torch.nonzero(~torch.isfinite(tensor).all(dim=1)).flatten()
    if len(bad):
        raise ModelError(
            f"{where}: row {int(bad[0])} ({len(bad)} rows in all) holds NaN or infinity; expected finite embeddings;"
            " look for empty texts or overflow in float16 where they were computed"
        )
    return tensor
