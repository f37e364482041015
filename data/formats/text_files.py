"""Readers of user-provided text files (CSV, JSON, JSON Lines). Every error names the file and the line."""

import csv
import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import DataError
from ratchet.files import MAX_LINE_BYTES, iterate_lines, open_regular, read_text

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
BLANK = " \t\r\n"
"""White space of JSON. Other characters that Python strips are errors."""

Rows = Iterator[tuple[str, dict[str, Any]]]
"""(`file:line`, row) of each row of a file."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


FIELD = re.compile(r"\{([^{}]+)\}")
"""A name in braces of a template such as `{title}: {body}`."""


def fill_template(where: str, template: str, row: Mapping[str, Any]) -> str:
    """Return a template with the values of a row in place of the column names in braces. `\\n` is a line break. Raises
    DataError for a column that the row does not have."""
    names = FIELD.findall(template)
    if not names or not row.keys() >= set(names):
        raise DataError(
            f"{where}: template {show(template)} given; expected some of {', '.join(map(str, row))} in braces; correct"
            " it"
        )
    texts = {}
    for name in names:
        if row[name] is None:
            texts[name] = ""
        else:
            texts[name] = str(row[name])
    return FIELD.sub(lambda found: texts[found[1]], template.replace("\\n", "\n"))


def show(value: Any) -> str:
    """Return the repr of a value from a file, shortened to fit into a message."""
    return _REPR.repr(value)


def refuse_list(where: str, text: str) -> None:
    """Raise DataError for a list that was written as a text, as pandas writes lists into CSV."""
    if re.fullmatch(r"""\s*\[\s*(['"]).*\1\s*\]\s*""", text, re.DOTALL):
        raise DataError(
            f"{where}: {show(text)} given, a list as a text; expected a text in each field; write JSON Lines or"
            " Parquet, which have lists, or one column per text"
        )


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (`file:line`, row) of each record. columns: required columns; empty: none. Raises DataError for a missing
    column, one that is given twice, a header with another separator, and for a row of another length."""
    # The default limit of a field is 131,072 characters. It is the module's, not the reader's.
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader((line for _, line in iterate_lines(path)), strict=True)
    header: list[str] = []
    where = f"{path}:1"
    try:
        for row in reader:
            if not header and "".join(row).strip(BLANK):
                header = row
                missing = set(columns).difference(header)
                if missing:
                    raise DataError(
                        f"{where}: no column {', '.join(sorted(missing))}; found {show(', '.join(header))}; add it"
                    )
                _refuse_other_separator(where, header)
                refuse_twice(where, header)
            elif header and row:
                if len(row) != len(header):
                    raise DataError(
                        f"{where}: {len(row)} fields; expected {len(header)} as in the header; check the quotes"
                    )
                yield where, dict(zip(header, row, strict=True))
            where = f"{path}:{reader.line_num + 1}"
    except csv.Error as error:
        raise DataError(
            f"{where}: {error}; expected CSV; check the quotes from this line on"
        ) from None


def _refuse_other_separator(where: str, header: Sequence[str]) -> None:
    """Raise DataError for a header of one column that contains another separator."""
    for separator, name in {";": "semicolons", "\t": "tabs", "|": "bars"}.items():
        if len(header) == 1 and separator in header[0]:
            raise DataError(
                f"{where}: the header {show(header[0])} is separated by {name}; expected commas; write the file again"
                " with commas"
            )


def refuse_twice(where: str, header: Sequence[str]) -> None:
    """Raise DataError for a column that a header has twice. Columns without a name may repeat."""
    for column in header:
        if column and header.count(column) > 1:
            raise DataError(
                f"{where}: column {column} given twice; expected it once; remove or rename one"
            )


def parse_json(
    where: str, text: str, expected: str = "one JSON object per line; correct or remove the line"
) -> Any:
    """Parse strict JSON. Raises DataError for text that is not JSON, NaN and Infinity, a field that is given
    twice, and half of a surrogate pair."""
    try:
        value = _DECODER.decode(text)
        if SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); expected {expected}") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no finite number")


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a field is given twice in one object")
    return made


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_make_object)


def read_json_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (`file:line`, value) of each line that is not blank. A `.json` file may be one array of values instead."""
    items = _read_array(path) if path.suffix == ".json" else None
    if items is not None:
        yield from ((f"{path}: item {number}", item) for number, item in enumerate(items))
        return
    for number, line in iterate_lines(path):
        if line.strip(BLANK):
            where = f"{path}:{number}"
            yield where, parse_json(where, line)


def _read_array(path: Path) -> list[Any] | None:
    """Read a file that is one JSON array; None for others, such as lines that begin with a bracket too."""
    with open_regular(path) as opened:
        if opened.read(64).lstrip()[:1] != b"[":
            return None
    try:
        value = parse_json(str(path), read_text(path))
    except DataError:
        return None
    return value if isinstance(value, list) else None


def read_json_objects(path: Path) -> Rows:
    """Yield (`file:line`, object) of each line that is not blank. Raises DataError for other JSON values."""
    for where, value in read_json_values(path):
        if not isinstance(value, dict):
            raise DataError(
                f"{where}: {type(value).__name__} given; expected one JSON object per line; fix or remove the line, or"
                " write an array so by `jq -c '.[]' FILE`"
            )
        yield where, value


def read_field(where: str, row: dict[str, Any], name: str, kind: type, default: Any = ...) -> Any:
    """Read a field of a JSON object. Raises DataError if it is missing or of another type than `kind`."""
    value = row.get(name, default)
    if value is ...:
        raise DataError(
            f"{where}: no field '{name}'; found {show(', '.join(row) or 'nothing')}; add it"
        )
    if type(value) is not kind and value is not default:
        raise DataError(
            f"{where}: field '{name}' is {type(value).__name__}; expected {kind.__name__}; correct or remove the row"
        )
    return value


def read_filled(where: str, row: dict[str, Any], name: str) -> str:
    """Read a field that is a text. Raises DataError if it is blank."""
    text = read_field(where, row, name, str)
    if not text.strip():
        raise DataError(f"{where}: {name} is empty; expected text; fill or remove the line")
    return str(text)
