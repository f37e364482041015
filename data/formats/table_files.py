"""Files of users with rows: Parquet, Arrow and sheets, and by `read_rows` any kind; files of a folder, their counts."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.formats.split_names import matches_split, refuse_missing_shards
from ratchet.data.formats.text_files import (
    BLANK,
    TEXTS,
    Rows,
    get_suffix,
    read_csv,
    read_json_values,
    refuse_twice,
)
from ratchet.errors import DataError
from ratchet.extras import require_extra
from ratchet.files import decompress, iterate_lines, open_regular

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


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (place, row) of each row of a file of any kind: a JSON value, or the fields of a row by their names. Lists,
    and rows of files without names, are the field `texts`; a line of a `.txt` file is the field `query`."""
    suffix = get_suffix(path)
    if suffix == ".txt":
        for number, line in iterate_lines(path):
            if line.strip(BLANK):
                yield f"{path}:{number}", {"query": line.strip(BLANK)}
    elif suffix in (".csv", ".tsv"):
        yield from read_csv(path)
    elif suffix == ".xlsx":
        yield from _read_sheet(path)
    elif suffix in SUFFIXES:
        yield from read_table(path)
    else:
        for where, value in read_json_values(path):
            if isinstance(value, list):
                value = {TEXTS: value}
            yield where, value


def _read_sheet(path: Path) -> Rows:
    """Yield (`file: row N`, row with texts) of the first sheet of a workbook, whose first row has the names of the
    columns. Raises DataError for a damaged file."""
    require_extra(f"{path}: a workbook given", "office", "openpyxl")
    import openpyxl

    with open_regular(path) as opened, _name_damage(path):
        book = openpyxl.load_workbook(opened, read_only=True, data_only=True)
        rows = list(book.worksheets[0].iter_rows(values_only=True))
    header = [str(name or "").strip() for name in rows[0]] if rows else []
    refuse_twice(str(path), header)
    for number, row in enumerate(rows[1:], start=2):
        texts = [None if value is None else str(value) for value in row]
        if any(texts):
            yield f"{path}: row {number}", dict(zip(header, texts, strict=False))


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
            labels = _find_entailment(batch.schema)
            for row in batch.to_pylist():
                number += 1
                for column, names in labels.items():
                    if row[column] in range(len(names)):
                        row[column] = names[row[column]]
                yield f"{path}: row {number}", row
        if expected not in (None, number):  # Arrow reads no rows behind some damaged footers
            raise ValueError(f"{number} rows found")


def _find_entailment(schema: pa.Schema) -> dict[str, list[str]]:
    """Return column -> names of its classes, if one is `entailment`, whose number differs between data sets (0 in RTE
    and QNLI). The library `datasets` writes the names into the schema."""
    known = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    found = {}
    for column, feature in known.get("info", {}).get("features", {}).items():
        names = feature.get("names") or () if isinstance(feature, dict) else ()
        if "entailment" in names and column in schema.names:
            found[column] = list(names)
    return found


@contextmanager
def _name_damage(path: Path) -> Iterator[None]:
    """Raise DataError for a damaged page or sheet: errors of Arrow, of the system, of decoders, of ZIP and of XML."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: cannot be read ({said}); expected a complete table; copy the file again"
        ) from None


def estimate_rows(files: Sequence[Path], first: Sequence[Any]) -> int:
    """Return the number of rows of tables; for a text file an estimate from its first rows, at least their number."""
    if files[0].suffix in SUFFIXES:
        return sum(map(_count_rows, files))
    lines = int(first[-1].where.rpartition(":")[2])
    with open_regular(files[0]) as opened:
        for _ in islice(decompress(opened), lines):
            pass
        share = opened.tell() / files[0].stat().st_size
    return max(len(first), round(len(first) / share))


def _count_rows(path: Path) -> int:
    with _name_damage(path):
        if path.suffix == ".arrow":
            return sum(batch.num_rows for batch in pa.ipc.open_stream(pa.memory_map(str(path))))
        return int(pq.read_metadata(path).num_rows)
