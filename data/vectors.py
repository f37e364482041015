"""Embeddings that the job `embed` wrote, read and checked against the ids of the texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from ratchet.data.tables import list_shards
from ratchet.errors import DataError


def read_vectors(path: Path, ids: Sequence[str]) -> np.ndarray:
    """Return the [N, D] float32 embeddings of one shard. Raises DataError if its ids are not `ids`, in order."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise DataError(
            f"{path}: missing; expected the embeddings of the shard of that name; embed the texts again"
        ) from None
    found = table["id"].to_pylist()
    if found != list(ids):
        row = next((i for i, (a, b) in enumerate(zip(found, ids, strict=False)) if a != b), min(len(found), len(ids)))
        raise DataError(
            f"{path}: row {row} is not the text's ({len(found)} rows for {len(ids)}); embed these texts again"
        )
    column = table["embedding"].combine_chunks()
    # A copy, since Arrow's memory is read-only and torch expects writable arrays.
    return np.array(column.flatten()).reshape(len(table), column.type.list_size)


def read_blocks(folder: Path, ids: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first row, [n, D] float32) of each shard of a corpus, in order. Raises DataError like `read_vectors`."""
    start = 0
    for path in list_shards(folder):
        rows = pq.read_metadata(path).num_rows
        yield start, read_vectors(path, ids[start : start + rows])
        start += rows
    if start != len(ids):
        raise DataError(f"{folder}: {start} vectors for {len(ids)} texts; expected one each; embed these texts again")


def group_blocks(pieces: Iterator[tuple[int, np.ndarray]], rows: int) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Group consecutive blocks, about `rows` rows per group."""
    group: list[tuple[int, np.ndarray]] = []
    for piece in pieces:
        group.append(piece)
        if sum(len(block) for _, block in group) >= rows:
            yield group
            group = []
    if group:
        yield group
