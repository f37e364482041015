"""Rows of Parquet files and Arrow streams that users give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.errors import DataError
from ratchet.files import open_regular


def read_table(path: Path, choose: Callable[[list[str]], Iterable[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`file: row N`, row) of a Parquet file, or of an Arrow stream (`.arrow`) as `datasets` writes it. choose:
    the names of all columns -> those that are read. Raises DataError for a damaged file and one without rows."""
    number, parquet = 0, path.suffix != ".arrow"
    with open_regular(path) as opened:
        try:
            file: Any = pq.ParquetFile(opened) if parquet else pa.ipc.open_stream(opened)
            columns = list(dict.fromkeys(choose((file.schema_arrow if parquet else file.schema).names)))
            for batch in file.iter_batches(4096, columns=columns) if parquet else file:
                for row in batch.select(columns).to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
        # A damaged page may be found at any row, as one of Arrow's errors, of the system's or of the decoder's.
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            said, kind = " ".join(str(error).split())[:200], "Parquet" if parquet else "Arrow"
            raise DataError(
                f"{path}: cannot be read as {kind} after row {number} ({said}); expected a complete {kind} file, or"
                " .jsonl; copy the file again"
            ) from None
    if not number:
        raise DataError(f"{path}: no rows; expected at least one; give another file")
