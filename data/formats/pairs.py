"""Pairs and triplets: JSON Lines, CSV, and Parquet or Arrow files with a query and its positive in each row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.formats.text_files import BLANK, read_csv, read_field, read_json_objects, show
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.errors import DataError
from ratchet.files import iterate_lines, open_regular

COLUMNS: Mapping[str, Sequence[str]] = {
    "query": ("query", "anchor", "question"),
    "positive": ("positive", "pos", "answer", "document"),
    "negative": ("negative", "neg"),
    "task": ("task",),
    "group": ("group",),
    "id": ("id", "_id"),
}
"""Option -> the names of the column that are recognised without it. Negatives may also be `negative_1`, ..."""
OTHERS = ("instruction", "name", "split", "weight")
"""Options of any format: the task of all queries; what stands in front of ids; which files of a folder; how many of the
training queries are drawn."""
MAX_WEIGHT = 1000.0
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")
NUMBERED = re.compile(r"negative_\d+")

Options = Mapping[str, Sequence[str]]
Find = Callable[[str, tuple[str, ...]], Options]


def parse_options(text: str, where: str) -> Options:
    """Parse the query string behind a path, such as `query=title&positive=body`. Raises DataError, beginning with
    `where`, for unknown and repeated options."""
    given: dict[str, list[str]] = {}
    for key, value in parse_qsl(text, keep_blank_values=True) or ([("", "")] if text else []):
        if key not in COLUMNS and key not in OTHERS:
            known = ", ".join((*COLUMNS, *OTHERS))
            raise DataError(f"{where}: option '{key}' given in '?{text}'; expected some of {known}; correct it")
        if not value.strip() or (key in given and key != "negative"):
            raise DataError(f"{where}: option '{key}' given twice or without a value; expected {key}=VALUE; correct it")
        given.setdefault(key, []).append(value)
    weight = given.get("weight", ["1"])[0]
    if not re.fullmatch(r"\d+(\.\d+)?|\.\d+", weight) or float(weight) > MAX_WEIGHT:
        raise DataError(f"{where}: weight '{weight}' given; expected 0 to {MAX_WEIGHT:g}; correct it")
    return given


def list_tables(path: Path, options: Options) -> list[Path]:
    """List the Parquet or Arrow files of a path, of the split that is given, in the order of their names."""
    split = "".join(rf"(.*-)?{re.escape(name)}(-\d+-of-\d+)?" for name in options.get("split", ()))
    found = [path] if path.is_file() else sorted(path.rglob("*.*"))
    return [file for file in found if file.suffix in (".parquet", ".arrow") and re.fullmatch(split or ".*", file.stem)]


def read(path: Path, options: Options, *, labelled: bool = True) -> RetrievalData:
    """Read a file, or a folder of Parquet or Arrow files. Raises DataError naming file and line (or row).

    Rows with the same id, or without ids the same query and task, are one query with several positives. Equal texts
    are one document. Without `labelled` each row is a query, and documents are not read.
    """
    ids: dict[str, str] = {}
    queries: dict[object, Query] = {}
    seen: dict[tuple[str, ...], Options] = {}
    joined = 0

    def find(where: str, names: tuple[str, ...]) -> Options:
        if names not in seen:
            seen[names] = _find_columns(where, names, options, labelled)
        return seen[names]

    for where, row in _read_rows(path, options, find):
        columns = find(where, tuple(row))
        text = read_field(where, row, columns["query"][0], str)
        task, name, group = (_read_name(where, row, columns[role], role) for role in ("task", "id", "group"))
        key = name or ((text, task) if labelled else len(queries))
        found, without = (
            [ids.setdefault(text, f"d{len(ids)}") for text in _read_texts(where, row, columns[role], role)]
            for role in ("positive", "negative")
        )
        first = queries.get(key)
        if first and (first.text != text or not labelled):
            raise DataError(f"{where}: id {show(name)} is also at {first.where}; expected unique ids; rename one")
        if first:
            joined += 1
            found, without = [*first.positives, *found], [*first.negatives, *without]
        positives = tuple(dict.fromkeys(found))
        negatives = tuple(dict.fromkeys(other for other in without if other not in positives))
        id = first.id if first else name or f"q{len(queries)}"
        grades = (1,) * len(positives)
        place = first.where if first else where
        queries[key] = Query(id, text, positives, grades, negatives, group or text, where=place, task=task)
    notes = {"rows that repeat the query of an earlier one, put together": joined} if joined else {}
    return RetrievalData([Document(name, text) for text, name in ids.items()], list(queries.values()), notes)


def _read_rows(path: Path, options: Options, find: Find) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) of each row."""
    if path.suffix == ".txt":
        yield from ((f"{path}:{n}", {"query": text}) for n, line in iterate_lines(path) if (text := line.strip(BLANK)))
    elif path.suffix == ".csv":
        yield from read_csv(path, ())
    elif files := list_tables(path, options):
        for file in files:
            yield from _read_table(file, find)
    else:
        yield from read_json_objects(path)


def _read_table(path: Path, find: Find) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) of each row of a Parquet file, or of an Arrow stream as `datasets` writes it."""
    open_regular(path).close()  # Arrow would wait for a named pipe
    number = 0
    try:
        parquet = path.suffix == ".parquet"
        file: Any = pq.ParquetFile(path) if parquet else pa.ipc.open_stream(pa.memory_map(str(path)))
        columns = find(str(path), tuple((file.schema_arrow if parquet else file.schema).names)).values()
        names = list(dict.fromkeys(name for own in columns for name in own))
        for batch in file.iter_batches(columns=names) if parquet else file:
            for row in batch.select(names).to_pylist():
                number += 1
                yield f"{path}: row {number}", row
    except (pa.ArrowException, OSError) as error:
        said = " ".join(str(error).split())
        raise DataError(f"{path}: cannot be read ({said}); expected {path.suffix[1:]}; write it again") from None


def _find_columns(where: str, names: tuple[str, ...], options: Options, labelled: bool) -> Options:
    """Return the columns of each kind among `names`. Raises DataError for those that are missing or ambiguous."""
    found: dict[str, Sequence[str]] = {}
    for role, known in COLUMNS.items():
        if not labelled:
            known = () if role in ("positive", "negative") else known
            known = (*known, "text") if role == "query" and set(known).isdisjoint(names) else known
        given = options.get(role, ()) if known else ()
        numbered = [name for name in names if role == "negative" and known and NUMBERED.fullmatch(name)]
        own = given or [*(name for name in known if name in names), *numbered]
        missing = [name for name in own if name not in names]
        if missing or (not own and known and role in ("query", "positive")):
            raise DataError(
                f"{where}: no column {show(missing[0]) if missing else f'for the {role}'}; found"
                f" {show(', '.join(names))}; expected {', '.join(known)}, or another one that is named behind the path"
                f" as '?{role}=NAME'; rename or name it"
            )
        if len(own) > 1 and role != "negative":
            raise DataError(
                f"{where}: columns {' and '.join(own)} could be the {role}; expected one; choose it behind the path:"
                f" '?{role}={own[0]}'"
            )
        found[role] = own
    return found


def _read_texts(where: str, row: Mapping[str, Any], columns: Sequence[str], role: str) -> list[str]:
    texts = []
    for value in (row.get(name) for name in columns):
        if role == "negative" and value in (None, ""):
            continue
        for text in value if isinstance(value, list) and value else [value]:
            if not isinstance(text, str) or not text.strip():
                raise DataError(
                    f"{where}: {role} {show(text)} given; expected a text that is not empty, or a list of texts;"
                    " correct or remove the row"
                )
            texts.append(text)
    return texts


def _read_name(where: str, row: Mapping[str, Any], columns: Sequence[str], role: str) -> str:
    value = row[columns[0]] if columns else ""
    if role == "task" and value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int) or (columns and role != "task" and value == ""):
        raise DataError(f"{where}: {role} {show(value)} given; expected a text or a whole number; correct the row")
    return str(value)
