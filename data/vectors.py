"""Embeddings that the job `embed` wrote, read and checked against the ids of the texts."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ratchet.data.tables import embeddings_schema, list_shards, open_mapped_shard, write_mapped
from ratchet.errors import DataError


def write_vectors(path: Path, ids: pa.ChunkedArray, vectors_ND: np.ndarray) -> None:
    """Write the float32 or float16 embeddings of one shard of texts, in their order, as an Arrow file."""
    dim = vectors_ND.shape[1]
    flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), dim)
    schema = embeddings_schema(dim, str(vectors_ND.dtype))
    write_mapped(path, pa.Table.from_arrays([ids.combine_chunks(), flat], schema=schema))


def read_dim(folder: Path) -> int:
    """Return the dimension of the embeddings in a folder."""
    return (
        open_mapped_shard(list_shards(folder, "arrow")[0]).schema.field("embedding").type.list_size
    )


def read_vectors(path: Path, ids: pa.Array) -> np.ndarray:
    """Return the [N, D] float32 embeddings of one shard. Raises DataError unless its ids are `ids`, in this order."""
    table = open_mapped_shard(path)
    _check_ids(path, table, ids)
    return view_embeddings(table).astype(np.float32)  # a copy: Arrow's memory is read-only


def read_blocks(
    folder: Path, ids: pa.Array, *, mapped: bool = False
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first row, [n, D] float32) of each shard of a corpus, in order. mapped: memory-mapped views in the stored
    dtype, instead of float32 copies. Raises DataError like `read_vectors`."""
    start = 0
    for path in list_shards(folder, "arrow"):
        table = open_mapped_shard(path)
        _check_ids(path, table, ids.slice(start, len(table)))
        yield start, view_embeddings(table) if mapped else view_embeddings(table).astype(np.float32)
        start += len(table)
    if start != len(ids):
        raise DataError(
            f"{folder}: {start} vectors for {len(ids)} texts; expected one each; embed these texts again"
        )


def _check_ids(path: Path, table: pa.Table, ids: pa.Array) -> None:
    if not table["id"].combine_chunks().equals(ids):
        raise DataError(
            f"{path}: its {len(table)} ids are not those of the {len(ids)} texts; expected the same in this order;"
            " embed these texts again"
        )


def view_embeddings(table: pa.Table) -> np.ndarray:
    """Return the embeddings of a shard, [N, D] in their dtype, without a copy."""
    column = table["embedding"]
    array = (
        column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    )  # which always copies
    numbers = array.flatten().to_numpy()
    return numbers.reshape(len(table), column.type.list_size)


def take_rows(blocks: Iterable[tuple[int, np.ndarray]], rows: np.ndarray) -> np.ndarray:
    """Return rows of a corpus from its blocks: [n, D] float32. rows: int64, ascending."""
    parts = []
    for first, block_ND in blocks:
        start, stop = np.searchsorted(rows, [first, first + len(block_ND)])
        parts.append(block_ND[rows[start:stop] - first].astype(np.float32))
    return np.concatenate(parts)
