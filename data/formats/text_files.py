"""Readers of user-provided text files (CSV, JSON Lines). Every error names the file and the line."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import DataError


def read_text(path: Path) -> str:
    """Read a file as text. Raises DataError if it is missing, and for the first line that is not UTF-8."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected one; check the path") from None
    return _decode(path, raw, 1)


def _decode(path: Path, raw: bytes, first: int) -> str:
    """Decode lines from line number `first` on. A byte order mark at the start of a file is removed."""
    try:
        return raw.decode("utf-8-sig" if first == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = first + raw.count(b"\n", 0, error.start)
        raise DataError(
            f"{path}:{line}: byte 0x{raw[error.start]:02x} is not UTF-8; expected UTF-8;"
            " convert the file (iconv -t utf-8)"
        ) from None


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (`file:line`, row) of each record. Raises DataError for a missing column or a row of another length."""
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
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


def read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (`file:line`, value) of each line that is not blank. Raises DataError for a line that is not JSON or not
    UTF-8, and for a missing file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected one; check the path") from None
    with file:
        for number, raw in enumerate(file, start=1):
            line = _decode(path, raw.removesuffix(b"\n"), number)
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DataError(
                    f"{where}: not JSON ({error}); expected one JSON object per line; correct or remove the line"
                ) from None
            yield where, value


def read_json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`file:line`, object) of each line that is not blank. Raises DataError for other JSON values."""
    for where, value in read_json_lines(path):
        if not isinstance(value, dict):
            raise DataError(f"{where}: {type(value).__name__} given; expected a JSON object; fix or remove the line")
        yield where, value


def read_field(where: str, row: dict[str, Any], name: str, kind: type, default: Any = ...) -> Any:
    """Read a field of a JSON object. Raises DataError if it is missing or of another type than `kind`."""
    value = row.get(name, default)
    if value is ...:
        raise DataError(f"{where}: no field '{name}'; found {', '.join(row) or 'nothing'}; add it")
    if not isinstance(value, kind) and value is not default:
        raise DataError(f"{where}: field '{name}' is {type(value).__name__}; expected {kind.__name__}")
    return value


def read_texts(where: str, row: dict[str, Any], name: str, default: Any = ...) -> list[str]:
    """Read a field that is a list of non-empty texts."""
    values = read_field(where, row, name, list, default) or []
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: field '{name}' holds {value!r}; expected texts that are not empty")
    return values


def read_scores(where: str, row: dict[str, Any], name: str, texts: Sequence[str]) -> list[float] | None:
    """Read a field that is a list of finite numbers, one for each of `texts`. None if it is missing."""
    values = read_field(where, row, name, list, None)
    if values is None:
        return None
    if len(values) != len(texts):
        raise DataError(f"{where}: field '{name}' has {len(values)} scores for {len(texts)} texts; expected one each")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"{where}: field '{name}' holds {value!r}; expected finite numbers")
    return [float(value) for value in values]
