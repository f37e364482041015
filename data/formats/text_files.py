"""Readers of user-provided text files (CSV, JSON, JSON Lines). Every error names the file and the line."""

from __future__ import annotations

import csv
import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.errors import DataError
from ratchet.files import MAX_LINE_BYTES, iterate_lines

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
ONE_PER_LINE = (
    "write it so, as `jq -c '.[]' FILE` does for an array, and `jq -c . FILE` for objects"
)
BLANK = " \t\r\n"
"""White space of JSON. Other characters that Python strips are errors."""
MAX_SCORE = 3e38
"""Bound on the absolute value of scores, which are stored as float32."""

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60


FIELD = re.compile(r"\{([^{}]+)\}")
"""A name in braces of a template such as `{title}: {body}`."""


def fill_template(where: str, template: str, row: Mapping[str, Any]) -> str:
    """Return a template with the values of a row in place of the column names in braces. `\\n` is a line break. Raises
    DataError for a column that the row does not have."""
    names = FIELD.findall(template)
    missing = []
    for name in names:
        if name not in row:
            missing.append(name)
    if missing or not names:
        raise DataError(
            f"{where}: template {show(template)} given, with {show(missing[0]) if missing else 'no column'}; expected"
            f" some of {', '.join(map(str, row))} in braces; correct it"
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


def read_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (`file:line`, row) of each record. columns: required columns; empty: none. Raises DataError for a missing
    column, a column that is given twice, a row of another length, and a file without rows."""
    # The default limit of a field is 131,072 characters. It is the module's, not the reader's.
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader((line for _, line in iterate_lines(path)), strict=True)
    start = 1
    rows = 0
    try:
        header = next((row for row in reader if len(row) > 1 or "".join(row).strip(BLANK)), [])
        missing = []
        for column in columns:
            if column not in header:
                missing.append(column)
        if missing:
            raise DataError(
                f"{path}:{reader.line_num}: no column {', '.join(missing)}; found"
                f" {show(', '.join(header) or 'nothing')}; add it"
            )
        _refuse_other_separator(f"{path}:{reader.line_num}", header)
        refuse_twice(f"{path}:{reader.line_num}", columns or header, header)
        start = reader.line_num + 1
        for row in reader:
            where = f"{path}:{start}"
            if row and len(row) != len(header):
                raise DataError(
                    f"{where}: {len(row)} fields; expected {len(header)} as in the header; check the quotes"
                )
            if row:
                rows += 1
                yield where, dict(zip(header, row, strict=True))
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}:{start}: {error}; expected CSV; check the quotes from this line on"
        ) from None
    if not rows:
        raise DataError(
            f"{path}: no rows below the header; expected at least one; check whether the file is complete"
        )


def _refuse_other_separator(where: str, header: Sequence[str]) -> None:
    """Raise DataError for a header of one column that contains another separator."""
    for separator, name in {";": "semicolons", "\t": "tabs", "|": "bars"}.items():
        if len(header) == 1 and separator in header[0]:
            raise DataError(
                f"{where}: the header {show(header[0])} is separated by {name}; expected commas; write the file again"
                " with commas"
            )


def refuse_twice(where: str, columns: Iterable[str], header: Sequence[str]) -> None:
    """Raise DataError for the first of the columns that a header has twice. Columns without a name may repeat."""
    for column in columns:
        if column and header.count(column) > 1:
            raise DataError(
                f"{where}: column {column} given twice; expected it once; remove or rename one"
            )


def parse_json(
    where: str, text: str, expected: str = "one JSON object per line; correct or remove the line"
) -> Any:
    """Parse strict JSON. Raises DataError for text that is not JSON, NaN and Infinity, a field that is given twice,
    absurd nesting, integers of thousands of digits, and half of a surrogate pair."""
    try:
        value = (
            json.loads(text) if text.startswith("\ufeff") else _DECODER.decode(text)
        )  # loads() names the BOM
        if SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except DataError as error:
        raise DataError(f"{where}: {error}") from None
    except RecursionError:
        given = "brackets nested too deeply"
    except UnicodeEncodeError as error:
        given = f"\\u{ord(error.object[error.start]):04x} without its other half (a lone surrogate)"
    except ValueError as error:
        if "int_max_str_digits" in str(error):
            given = "an integer of thousands of digits"
        else:
            given = f"not JSON ({error})"
    raise DataError(f"{where}: {given}; expected {expected}")


def _refuse_constant(name: str) -> Any:
    raise DataError(
        f"{name} given; expected finite numbers, since JSON has no others; correct or remove it"
    )


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DataError(
            f"field {show(twice)} given twice in one object; expected it once; remove one"
        )
    return made


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_make_object)


def read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (`file:line`, value) of each line that is not blank. Raises DataError as `parse_json` and
    `ratchet.files.iterate_lines` do."""
    for number, line in iterate_lines(path):
        if not line.strip(BLANK):
            continue
        where = f"{path}:{number}"
        if number == 1 and line.strip(BLANK) in ("[", "{"):
            raise DataError(
                f"{where}: JSON over several lines; expected one object per line; {ONE_PER_LINE}"
            )
        yield where, parse_json(where, line)


def read_json_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`file:line`, object) of each line that is not blank. Raises DataError for other JSON values."""
    for where, value in read_json_lines(path):
        if isinstance(value, list) and value and isinstance(value[0], dict):
            raise DataError(
                f"{where}: a JSON array given; expected one object per line; {ONE_PER_LINE}"
            )
        if not isinstance(value, dict):
            raise DataError(
                f"{where}: {type(value).__name__} given; expected a JSON object; fix or remove the line"
            )
        yield where, value


def read_field(where: str, row: dict[str, Any], name: str, kind: type, default: Any = ...) -> Any:
    """Read a field of a JSON object. Raises DataError if it is missing or of another type than `kind`."""
    value = row.get(name, default)
    if value is ...:
        raise DataError(
            f"{where}: no field '{name}'; found {show(', '.join(row) or 'nothing')}; add it"
        )
    if (
        not isinstance(value, kind) or (kind is int and isinstance(value, bool))
    ) and value is not default:
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


def read_scores(
    where: str, row: dict[str, Any], name: str, texts: Sequence[str]
) -> list[float] | None:
    """Read a field with one finite number per text; None if it is missing. Raises DataError for other values."""
    values = read_field(where, row, name, list, None)
    if values is None:
        return None
    if len(values) != len(texts):
        raise DataError(
            f"{where}: field '{name}' has {len(values)} scores for {len(texts)} texts; expected one each; score the"
            " line again"
        )
    for value in values:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not abs(value) <= MAX_SCORE
        ):
            raise DataError(
                f"{where}: field '{name}' holds {show(value)}; expected finite numbers, at most {MAX_SCORE:g}; score"
                " the line again"
            )
    return [float(value) for value in values]
