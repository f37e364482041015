"""Reading the text files that people give: every error names the file and the line."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data.errors import DataError


def text_of(path: Path) -> str:
    """A file as text. Raises DataError where it is missing, or for the line that is no UTF-8."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected one; check the path") from None
    return _decoded(path, raw, 1)


def _decoded(path: Path, raw: bytes, first: int) -> str:
    """Lines from the `first` on as text, without the mark that some editors put before a file's first."""
    try:
        return raw.decode("utf-8-sig" if first == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = first + raw.count(b"\n", 0, error.start)
        raise DataError(
            f"{path}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; expected UTF-8;"
            " convert the file (iconv -t utf-8)"
        ) from None


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """(`file:line`, row) of each record. Raises DataError for a missing column and for a row of another length."""
    reader = csv.reader(io.StringIO(text_of(path), newline=""), strict=True)
    try:
        header = next(reader, [])
        missing = [column for column in columns if column not in header]
        if missing:
            raise DataError(f"{path}:1: no column {', '.join(missing)}; found {', '.join(header) or 'nothing'}; add it")
        start = reader.line_num + 1
        for row in reader:
            where = f"{path}:{start}"
            if row and len(row) != len(header):
                raise DataError(
                    f"{where}: {len(row)} fields; expected {len(header)} as in the header; check the quotes"
                )
            if row:
                yield where, dict(zip(header, row, strict=True))
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}; expected CSV; check the quotes") from None


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(`file:line`, value) of each line that is not blank, one line held at a time. Raises DataError for what is no
    JSON, no UTF-8, or no file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected one; check the path") from None
    with file:
        for number, raw in enumerate(file, start=1):
            line = _decoded(path, raw.removesuffix(b"\n"), number)
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DataError(
                    f"{where}: not JSON ({error}); expected one JSON object a line; mend or remove the line"
                ) from None
            yield where, value


def jsonl_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(`file:line`, object) of each line that is not blank. Raises DataError for what is no JSON object."""
    for where, value in json_lines(path):
        if not isinstance(value, dict):
            raise DataError(f"{where}: {type(value).__name__} given; expected a JSON object")
        yield where, value


def field_of(where: str, row: dict[str, Any], name: str, kind: type, default: Any = ...) -> Any:
    """A field of a JSON object, of the type expected. Raises DataError otherwise."""
    value = row.get(name, default)
    if value is ...:
        raise DataError(f"{where}: no field '{name}'; found {', '.join(row) or 'nothing'}; add it")
    if not isinstance(value, kind) and value is not default:
        raise DataError(f"{where}: field '{name}' is {type(value).__name__}; expected {kind.__name__}")
    return value


def texts_of(where: str, row: dict[str, Any], name: str, default: Any = ...) -> list[str]:
    """A field that is a list of non-empty texts."""
    values = field_of(where, row, name, list, default) or []
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: field '{name}' holds {value!r}; expected texts that are not empty")
    return values


def scores_of(where: str, row: dict[str, Any], name: str, texts: Sequence[str]) -> list[float] | None:
    """A field that is a list of finite numbers, one for each of `texts`; None if it is not there."""
    values = field_of(where, row, name, list, None)
    if values is None:
        return None
    if len(values) != len(texts):
        raise DataError(f"{where}: field '{name}' has {len(values)} scores for {len(texts)} texts; expected one each")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"{where}: field '{name}' holds {value!r}; expected finite numbers")
    return [float(value) for value in values]
