"""Parquet and Arrow files of users: finding them in a folder, counting and reading their rows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.formats.split_names import matches_split, refuse_missing_shards
from ratchet.data.formats.text_files import Rows, refuse_twice
from ratchet.errors import DataError
from ratchet.files import open_regular

SUFFIXES = (".parquet", ".arrow")


def list_tables(path: Path, options: Mapping[str, Sequence[str]]) -> list[Path]:
    """List the Parquet or Arrow files of a path and a split: linked ones too, but no hidden ones, and no caches of the
    library `datasets`. Raises DataError if no name of a file tells the split, and for missing shards."""
    if not path.is_dir():
        return [path] * (path.suffix in SUFFIXES)
    tables = []
    for name in sorted(glob("**/*.*", root_dir=path, recursive=True)):
        file = path / name
        if file.suffix in SUFFIXES and not file.name.startswith("cache-"):
            tables.append(file)
    refuse_missing_shards(tables)
    if "split" not in options or not tables:
        return tables
    split = options["split"][0]
    chosen = [file for file in tables if matches_split(file, path, split)]
    if not chosen:
        names = ", ".join(file.name for file in tables[:4])
        raise DataError(
            f"{path}: ?split={split} given; expected a split that the names of its files tell ({names}); correct it"
        )
    return chosen


def read_table(path: Path) -> Rows:
    """Yield (`file: row N`, row) of a Parquet file, or of an Arrow stream (`.arrow`) as `datasets` writes it. Raises
    DataError for a damaged file."""
    number = 0
    with open_regular(path) as opened, _name_damage(path):
        expected = None
        if path.suffix == ".arrow":
            batches = iter(pa.ipc.open_stream(opened))
        else:
            table = pq.ParquetFile(opened)
            expected = table.metadata.num_rows
            batches = table.iter_batches(4096)
        for batch in batches:
            refuse_twice(str(path), batch.schema.names)
            for row in batch.to_pylist():
                number += 1
                yield f"{path}: row {number}", row
        if expected not in (None, number):  # Arrow reads no rows behind some damaged footers
            raise ValueError(f"{number} rows found")


@contextmanager
def _name_damage(path: Path) -> Iterator[None]:
    """Raise DataError for a damaged page, which is an error of Arrow, of the system or of the decoder."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        said = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: cannot be read ({said}); expected a complete table; copy the file again"
        ) from None


def estimate_rows(files: Sequence[Path], first: Sequence[Any]) -> int:
    """Return the number of rows of tables; for a text file an estimate from its first rows, at least their number."""
    if files[0].suffix in SUFFIXES:
        return sum(map(_count_rows, files))
    lines = int(first[-1].where.rpartition(":")[2])
    with files[0].open("rb") as opened:
        read = sum(map(len, islice(opened, lines)))
    share = read / files[0].stat().st_size
    return max(len(first), round(len(first) / share))


def _count_rows(path: Path) -> int:
    with _name_damage(path):
        if path.suffix == ".arrow":
            return sum(batch.num_rows for batch in pa.ipc.open_stream(pa.memory_map(str(path))))
        return int(pq.read_metadata(path).num_rows)
