"""Tables between steps: folders of Parquet shards `shard-00000.parquet`, ..., read in the order of their names.

The same rows give the same bytes, and a shard is there whole or not at all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from data.errors import DataError

CORPUS = pa.schema([("id", pa.string()), ("text", pa.string())])
"""Documents. `id` is unique."""

QUERIES = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("positives", pa.list_(pa.string())),
        ("grades", pa.list_(pa.int32())),
        ("negatives", pa.list_(pa.string())),
    ]
)
"""Queries. positives, negatives: ids in the corpus; grades: of the positives, 1 or more, in the same order."""

MINED = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("positives", pa.list_(pa.string())),
        ("negatives", pa.list_(pa.string())),
        ("positive_scores", pa.list_(pa.float32())),
        ("negative_scores", pa.list_(pa.float32())),
    ]
)
"""Queries with mined negatives and the embedder's similarities."""


RANKED = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.string()),
        ("documents", pa.list_(pa.string())),
        ("scores", pa.list_(pa.float32())),
        ("ranks", pa.list_(pa.int64())),
    ]
)
"""Queries with the best documents, best first, and the ranks (from 1, over the whole corpus) of their positives."""

SCORED = {
    "positives": "teacher_positive_scores",
    "negatives": "teacher_negative_scores",
    "documents": "teacher_scores",
}
"""Columns of ids -> the column of a reranker's scores beside each, list<float32>."""


def embeddings_schema(dim: int) -> pa.Schema:
    """Rows in the order of the texts that were embedded."""
    return pa.schema([("id", pa.string()), ("embedding", pa.list_(pa.float32(), dim))])


def write_table(path: Path, table: pa.Table) -> None:
    """Writes one Parquet file: elsewhere first, synced, then renamed."""
    with _replacing(path) as file:
        pq.write_table(table, file, compression="zstd", row_group_size=65_536)


def write_shards(folder: Path, rows: Sequence[dict[str, Any]], schema: pa.Schema, rows_per_shard: int) -> list[Path]:
    """Writes rows as shards of `rows_per_shard`; at least one shard, which may be empty."""
    paths = []
    for number, start in enumerate(range(0, max(1, len(rows)), rows_per_shard)):
        path = folder / f"shard-{number:05d}.parquet"
        write_table(path, pa.Table.from_pylist(list(rows[start : start + rows_per_shard]), schema=schema))
        paths.append(path)
    return paths


def write_mapped(path: Path, table: pa.Table) -> None:
    """Writes one Arrow file, not compressed: `open_mapped` takes no memory for it. Elsewhere first, then renamed."""
    with _replacing(path) as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes the path's place, synced, when all is written; left early, nothing has happened."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def open_mapped(folder: Path) -> pa.Table:
    """All `shard-*.arrow` of a folder as one table that stays on the disk; processes share what they read. Raises
    DataError if there are none, or one is cut short."""
    tables = []
    for path in shard_paths(folder, "arrow"):
        try:
            tables.append(pa.ipc.open_file(pa.memory_map(str(path))).read_all())
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"{path}: cannot be read as Arrow ({error}); expected a shard; make the step again"
            ) from None
    return pa.concat_tables(tables)


def shard_paths(folder: Path, suffix: str = "parquet") -> list[Path]:
    """The shards of a folder, in order. Raises DataError if there are none."""
    paths = sorted(folder.glob(f"shard-*.{suffix}"))
    if not paths:
        raise DataError(f"{folder}: no shard-*.{suffix} in it; expected a folder that a step made; check the path")
    return paths


def read_shards(folder: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """All shards as one table. Raises DataError naming the shard that cannot be read or lacks a column."""
    tables = []
    for path in shard_paths(folder):
        try:
            tables.append(pq.read_table(path, columns=list(columns) if columns else None))
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"{path}: cannot be read as Parquet ({error}); expected a shard; make the step again"
            ) from None
        missing = set(columns or ()) - set(tables[-1].column_names)
        if missing:
            raise DataError(
                f"{path}: has no column {', '.join(sorted(missing))}; expected one; is it another kind of table?"
            )
    return pa.concat_tables(tables)
