"""Vectors that `embed` wrote, checked against the texts that they belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from data.errors import DataError
from data.tables import shard_paths


def matrix(path: Path, ids: Sequence[str]) -> np.ndarray:
    """[N, D] float32 of one shard. Raises DataError where its rows are not those of `ids`, in order."""
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise DataError(
            f"{path}: missing; expected the vectors of the texts' shard of that name; embed them again"
        ) from None
    found = table["id"].to_pylist()
    if found != list(ids):
        row = next((i for i, (a, b) in enumerate(zip(found, ids, strict=False)) if a != b), min(len(found), len(ids)))
        raise DataError(
            f"{path}: row {row} is not the text's ({len(found)} rows for {len(ids)}); embed these texts again"
        )
    return _values(table)


def blocks(folder: Path, ids: Sequence[str]) -> Iterator[tuple[int, np.ndarray]]:
    """(first row, [n, D] float32) of each shard of a corpus, in order. Raises DataError like `matrix`."""
    start = 0
    for path in shard_paths(folder):
        rows = pq.read_metadata(path).num_rows
        yield start, matrix(path, ids[start : start + rows])
        start += rows
    if start != len(ids):
        raise DataError(f"{folder}: {start} vectors for {len(ids)} texts; expected one each; embed these texts again")


def grouped(pieces: Iterator[tuple[int, np.ndarray]], rows: int) -> Iterator[list[tuple[int, np.ndarray]]]:
    """Consecutive blocks together, about `rows` rows at a time."""
    group: list[tuple[int, np.ndarray]] = []
    for piece in pieces:
        group.append(piece)
        if sum(len(block) for _, block in group) >= rows:
            yield group
            group = []
    if group:
        yield group


def _values(table) -> np.ndarray:  # type: ignore[no-untyped-def]
    column = table["embedding"].combine_chunks()
    # A copy: what Arrow holds cannot be written to, and torch wants to be able to.
    return np.array(column.flatten()).reshape(len(table), column.type.list_size)
