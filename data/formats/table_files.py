"""Parquet and Arrow files of users: finding them in a folder, counting and reading their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.formats.split_names import find_split, matches_split, refuse_missing_shards
from ratchet.data.formats.text_files import parse_json, refuse_twice
from ratchet.errors import DataError
from ratchet.files import open_regular, read_text


def list_tables(path: Path, options: Mapping[str, Sequence[str]]) -> list[Path]:
    """List the Parquet or Arrow files of a path and a split: linked ones too, but no hidden ones, and no caches of the
    library `datasets`."""
    if path.is_file():
        found = [path]
    else:
        found = sorted(path / name for name in glob("**/*.*", root_dir=path, recursive=True))
    tables = []
    for file in found:
        if file.suffix in (".parquet", ".arrow") and (file == path or _is_data(file)):
            tables.append(file)
    if "split" in options and path.is_dir():
        split = options["split"][0]
        chosen = []
        for file in tables:
            if matches_split(file, path, split):
                chosen.append(file)
        others = sorted({find_split(file, path) for file in tables} - {""})
        if others and not chosen:
            raise DataError(
                f"{path}: ?split={split} given; expected a split that the names of its files tell, such as"
                f" {' and '.join(others)}; correct it"
            )
        tables = chosen or tables  # the rows of other files may be in the split
    refuse_missing_shards(tables)
    return tables


def _is_data(file: Path) -> bool:
    """Return whether a table is data, not a cache that the library `datasets` left beside its files: `state.json` lists
    the data of `save_to_disk`."""
    if file.suffix != ".arrow":
        return True
    state = file.parent / "state.json"
    if state.is_file():
        files = parse_json(str(state), read_text(state), "the state that save_to_disk wrote").get(
            "_data_files", ()
        )
        return any(one.get("filename") == file.name for one in files)
    return not file.name.startswith("cache-")


def read_table(
    path: Path, choose: Callable[[list[str]], Iterable[str]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`file: row N`, row) of a Parquet file, or of an Arrow stream (`.arrow`) as `datasets` writes it. choose:
    names of all columns -> names to read. Raises DataError for a damaged file and a file without rows."""
    number = 0
    parquet = path.suffix != ".arrow"
    with open_regular(path) as opened:
        try:
            file: Any
            if parquet:
                file = pq.ParquetFile(opened)
            else:
                file = pa.ipc.open_stream(opened)
            names = (file.schema_arrow if parquet else file.schema).names
            refuse_twice(str(path), columns := list(dict.fromkeys(choose(names))), names)
            for batch in file.iter_batches(4096, columns=columns) if parquet else file:
                for row in batch.select(columns).to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
        # A damaged page may be found at any row, as an error of Arrow, of the system or of the decoder.
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            said = " ".join(str(error).split())[:200]
            if parquet:
                kind = "Parquet"
            else:
                kind = "Arrow"
            raise DataError(
                f"{path}: cannot be read as {kind} after row {number} ({said}); expected a complete {kind} file, or"
                " .jsonl; copy the file again"
            ) from None
    if not number:
        raise DataError(f"{path}: no rows; expected at least one; give another file")


def estimate_rows(files: Sequence[Path], first: Sequence[Any]) -> int:
    """Return the number of rows of tables; for a text file an estimate from its first rows, at least their number."""
    if files[0].suffix in (".parquet", ".arrow"):
        return sum(map(_count_rows, files))
    with files[0].open("rb") as opened:
        read = sum(map(len, islice(opened, int(first[-1].where.rpartition(":")[2]))))
    return max(len(first), round(len(first) * files[0].stat().st_size / read))


def _count_rows(path: Path) -> int:
    try:
        if path.suffix == ".arrow":
            return sum(batch.num_rows for batch in pa.ipc.open_stream(pa.memory_map(str(path))))
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); expected a complete table; copy the file again"
        ) from None
