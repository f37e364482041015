"""Pairs and triplets: JSON Lines, CSV, and Parquet or Arrow files with a query and its positive in each row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from glob import glob
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data import retrieval
from ratchet.data.formats.text_files import (
    BLANK,
    FIELD,
    fill_template,
    read_csv,
    read_field,
    read_json_objects,
    refuse_twice,
    show,
)
from ratchet.data.retrieval import Document, RetrievalData
from ratchet.data.retrieval.rows import Row, number_rows
from ratchet.errors import DataError
from ratchet.files import iterate_lines, open_regular

COLUMNS: Mapping[str, Sequence[str]] = {
    "query": ("query", "anchor", "question"),
    "positive": ("positive", "pos", "answer", "document"),
    "negative": ("negative", "neg"),
    "task": ("task", "prompt"),
    "prompt": ("reranker_prompt",),
    "group": ("group",),
    "id": ("id", "_id"),
}
"""Option -> default names of its column, of which the first that exists is read. Negatives also: `negative_1`, ..."""
OTHERS = ("instruction", "name", "split", "template", "weight")
"""Options of any format. instruction: task of all queries; name: prefix of ids; split: which files of a folder;
template: query text from several columns; weight: factor on the number of training queries."""
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")

Options = Mapping[str, Sequence[str]]


def parse_options(text: str, where: str) -> Options:
    """Parse the query string behind a path, such as `query=title&positive=body`. Raises DataError, beginning with
    `where`, for unknown options, those without a value or with several, and a weight out of bounds."""
    given = parse_qs(text, keep_blank_values=True)
    for key, values in given.items() if given or not text else [(text, [""])]:
        wrong = key not in (*COLUMNS, *OTHERS) or "" in values or (len(values) > 1 and key != "negative")
        if wrong or (key == "weight" and not re.fullmatch(r"\d{1,3}(\.\d+)?|\.\d+", values[0])):
            raise DataError(
                f"{where}: '{key}={'&'.join(values)}' given behind the path; expected some of"
                f" {', '.join((*COLUMNS, *OTHERS))}, each with one value (weight: 0 to 999); correct it"
            )
    if {"query", "template"} <= given.keys():
        raise DataError(f"{where}: query and template given behind the path; expected one of the two; leave one out")
    return given


def list_tables(path: Path, options: Options) -> list[Path]:
    """List the Parquet or Arrow files of a path and a split, by name: linked ones too, but no hidden ones."""
    name = "".join(rf"(.*-)?{re.escape(split)}(-\d+-of-\d+)?" for split in options.get("split", ())) or ".*"
    found = [path] if path.is_file() else sorted(path / name for name in glob("**/*.*", root_dir=path, recursive=True))
    return [file for file in found if file.suffix in (".parquet", ".arrow") and re.fullmatch(name, file.stem)]


def read(path: Path, options: Options, *, labelled: bool = True, sampled: bool = False) -> RetrievalData:
    """Read a file, or a folder of Parquet or Arrow files. Raises DataError naming file and line (or row).

    Rows with the same query, instructions and id, if there are ids, are one query with several positives. Equal texts
    are one document. Without `labelled` each row is a query, and documents are not read. sampled: of more than
    `ratchet.data.retrieval.LARGE` bytes read only the first rows."""
    rows = _read_rows(path, options, labelled)
    rows, share = take_sample(rows, list_tables(path, options) or [path], sampled)
    return number_rows(rows, share=share)


def _read_rows(path: Path, options: Options, labelled: bool) -> Iterator[Row]:
    seen: dict[tuple[str, ...], Options] = {}
    template = options.get("template")
    for number, (where, row) in enumerate(_read_objects(path, options, labelled)):
        if (names := tuple(row)) not in seen:
            seen[names] = _find_columns(where, names, options, labelled)
        columns = seen[names]
        text = fill_template(where, template[0], row) if template else read_field(where, row, columns["query"][0], str)
        id, group, task, prompt = (read_name(where, row, columns[r], r) for r in ("id", "group", "task", "prompt"))
        positives, negatives = (list(_read_texts(where, row, columns[r], r)) for r in ("positive", "negative"))
        key = (id, text, task, prompt) if labelled else number
        yield Row(key, text, positives, negatives, group or text, where, id, task, prompt)


def take_sample(rows: Iterator[Row], files: Sequence[Path], sampled: bool) -> tuple[Iterator[Row], float]:
    """Return (rows, fraction of all rows that they are): only the first rows of large files if `sampled`, else all."""
    if not sampled or sum(file.stat().st_size for file in files) <= retrieval.LARGE:
        return rows, 1.0
    first = list(islice(rows, retrieval.SAMPLE))
    return iter(first), len(first) / estimate_rows(files, first)


def estimate_rows(files: Sequence[Path], first: Sequence[Row | Document]) -> int:
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
        raise DataError(f"{path}: cannot be read ({error}); expected a complete table; copy the file again") from None


def _read_objects(path: Path, options: Options, labelled: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix == ".txt":
        yield from ((f"{path}:{n}", {"query": text}) for n, line in iterate_lines(path) if (text := line.strip(BLANK)))
    elif path.suffix == ".csv":
        yield from read_csv(path, ())
    elif path.suffix in (".jsonl", ".json"):
        yield from read_json_objects(path)
    for file in list_tables(path, options):
        find = partial(_find_columns, str(file), options=options, labelled=labelled)
        yield from read_table(file, lambda names, find=find: chain(*find(names).values()))  # type: ignore[misc]


def read_table(path: Path, choose: Callable[[list[str]], Iterable[str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`file: row N`, row) of a Parquet file, or of an Arrow stream (`.arrow`) as `datasets` writes it. choose:
    names of all columns -> names to read. Raises DataError for a damaged file and a file without rows."""
    number, parquet = 0, path.suffix != ".arrow"
    with open_regular(path) as opened:
        try:
            file: Any = pq.ParquetFile(opened) if parquet else pa.ipc.open_stream(opened)
            names = (file.schema_arrow if parquet else file.schema).names
            refuse_twice(str(path), columns := list(dict.fromkeys(choose(names))), names)
            for batch in file.iter_batches(4096, columns=columns) if parquet else file:
                for row in batch.select(columns).to_pylist():
                    number += 1
                    yield f"{path}: row {number}", row
        # A damaged page may be found at any row, as an error of Arrow, of the system or of the decoder.
        except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            said, kind = " ".join(str(error).split())[:200], "Parquet" if parquet else "Arrow"
            raise DataError(
                f"{path}: cannot be read as {kind} after row {number} ({said}); expected a complete {kind} file, or"
                " .jsonl; copy the file again"
            ) from None
    if not number:
        raise DataError(f"{path}: no rows; expected at least one; give another file")


def _find_columns(where: str, names: Sequence[str], options: Options, labelled: bool) -> Options:
    """Return the columns of each kind among `names`. Raises DataError for those that are missing."""
    found: dict[str, Sequence[str]] = {}
    for role, defaults in COLUMNS.items():
        read = labelled or role not in ("positive", "negative")
        fields = FIELD.findall(options["template"][0]) if role == "query" and "template" in options else ()
        known = fields or options.get(role) or (*defaults, *(["text"] if role == "query" and not labelled else []))
        own = [name for name in known if name in names][: None if role in options or fields else 1]
        own += [name for name in names if role == "negative" and re.fullmatch(r"negative_\d+", name)]
        if read and len(own) < (len(known) if role in options or fields else role in ("query", "positive")):
            raise DataError(
                f"{where}: no column for the {role}; found {show(', '.join(names))}; expected {' or '.join(known)};"
                f" rename one, or name it behind the path as '?{role}=NAME'"
            )
        found[role] = own if read else ()
    return found


def _read_texts(where: str, row: Mapping[str, Any], columns: Sequence[str], role: str) -> Iterator[str]:
    for value in (row.get(name) for name in columns):
        for text in value if isinstance(value, list) and value else [value]:
            if isinstance(text, str) and text.strip():
                yield text
            elif role == "positive" or value not in (None, "", []):
                raise DataError(
                    f"{where}: {role} {show(text)} given; expected a text that is not empty, or a list of texts;"
                    " correct or remove the row"
                )


def read_name(where: str, row: Mapping[str, Any], columns: Sequence[str], role: str) -> str:
    """Read the first of `columns` as a text; empty if missing or blank. Raises DataError unless text or integer."""
    value = row.get(columns[0]) if columns else None
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise DataError(f"{where}: {role} {show(value)} given; expected a text or a whole number; correct the row")
    return "" if value is None or not str(value).strip() else str(value)
