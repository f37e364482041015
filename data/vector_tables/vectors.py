"""Vectors as columns of tables, and in smaller dtypes."""

import numpy as np
import pyarrow as pa

from ratchet.data.vector_tables import Dtype
from ratchet.errors import DataError


def convert_vectors(vectors_ND: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Return vectors of length 1 in a smaller dtype.

    int8: each vector is scaled to [-127, 127], which keeps its cosines with others. binary: uint8 [N, D / 8], a bit for
    each number above 0; the Hamming distance replaces the cosine."""
    if dtype == "binary":
        return np.packbits(vectors_ND > 0, axis=1)
    if dtype == "int8":
        largest_N1 = np.abs(vectors_ND).max(axis=1, keepdims=True)
        return np.round(vectors_ND * (127 / largest_N1)).astype(np.int8)
    return vectors_ND.astype(dtype)


def restore_vectors(converted: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Return the float32 vectors of length 1 that converted ones stand for. The dot product of those of binary vectors
    orders as the Hamming distance."""
    found_ND = converted.astype(np.float32)
    if dtype == "binary":
        found_ND = np.unpackbits(converted, axis=1) * np.float32(2) - 1
    return found_ND / np.linalg.norm(found_ND, axis=1, keepdims=True)


def fit_rows(name: str, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns and types of the table `name`. Raises DataError if they cannot be converted."""
    try:
        return rows.select(schema.names).cast(schema)
    except (KeyError, pa.ArrowInvalid, ValueError) as error:
        raise DataError(
            f"{name}: rows with the columns {', '.join(rows.column_names)} given ({error}); expected those of the"
            f" table, {', '.join(schema.names)}, with the same types; write to a new table"
        ) from None


def to_lists(vectors: np.ndarray) -> pa.FixedSizeListArray:
    """Return vectors as a column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])


def to_array(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of vectors as an array [N, D]."""
    lists = column.combine_chunks()
    return lists.flatten().to_numpy().reshape(len(column), column.type.list_size)
