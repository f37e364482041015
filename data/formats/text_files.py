"""Readers of user-provided text files (CSV, TSV, JSON, JSON Lines). Every error names the file and the line."""

import csv
import json
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ratchet.errors import DataError
from ratchet.files import MAX_LINE_BYTES, iterate_lines, read_text

QUOTED = re.compile(r'"([^"]|"")*"(\t|\r?\n|$)')
"""A field in quotes, with those in its text doubled."""
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
BLANK = " \t\r\n"
"""White space of JSON. Other characters that Python strips are errors."""

Rows = Iterator[tuple[str, dict[str, Any]]]
"""(`file:line`, row) of each row of a file."""
TEXTS = "texts"
"""Field of a row whose texts have no names: a line of a file without a header, or a list."""

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


def get_suffix(path: Path) -> str:
    """Return the suffix of a path, without `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix


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


def read_csv(path: Path, columns: Sequence[str] = ()) -> Rows:
    """Yield (`file:line`, row) of each record. columns: required columns. The separator is that of the header: comma,
    semicolon, tab or bar; in `.tsv` files a tab. Two or three columns of a file without a header are the field `texts`.
    Raises DataError for a missing column, one that is given twice, and for a row of another length."""
    # The default limit of a field is 131,072 characters. It is the module's, not the reader's.
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = (line for _, line in iterate_lines(path))
    first = ""
    skipped = -1
    while not first.strip(BLANK):
        first = next(lines)
        skipped += 1
    where = f"{path}:{skipped + 1}"
    try:
        separator = "\t"
        if get_suffix(path) != ".tsv":
            # The first of those that make the most columns.
            separator = max(",;\t|", key=lambda one: len(next(csv.reader([first], delimiter=one))))
        is_quoted = separator != "\t" or bool(QUOTED.match(first))
        reader = csv.reader(
            chain([first], lines),
            delimiter=separator,
            quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
            strict=True,
        )
        header = next(reader)
        missing = set(columns).difference(header)
        if missing:
            raise DataError(
                f"{where}: no column {', '.join(sorted(missing))}; found {show(', '.join(header))}; add it"
            )
        is_named = separator != "\t" or _is_header(header)
        if is_named:
            refuse_twice(where, header)
        else:
            yield where, {TEXTS: header}
        where = f"{path}:{skipped + reader.line_num + 1}"
        for row in reader:
            if row and len(row) != len(header):
                raise DataError(
                    f"{where}: {len(row)} fields; expected {len(header)} as in the first row; check the quotes"
                )
            if not is_quoted:
                # Other quotes than those around a field are part of its text.
                for number, field in enumerate(row):
                    if QUOTED.fullmatch(field):
                        row[number] = field[1:-1].replace('""', '"')
            if row and is_named:
                yield where, dict(zip(header, row, strict=True))
            elif row:
                yield where, {TEXTS: row}
            where = f"{path}:{skipped + reader.line_num + 1}"
    except csv.Error as error:
        raise DataError(
            f"{where}: {error}; expected CSV; check the quotes from this line on"
        ) from None


def _is_header(row: Sequence[str]) -> bool:
    """Return whether a first row has names of columns: it is no pair or triplet, or has no text of four words."""
    return len(row) not in (2, 3) or max(len(field.split()) for field in row) < 4


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
    """Yield (`file:line`, value) of each line that is not blank. A `.json` file may be one array of values instead, an
    object with one as `data`, or one object."""
    items = _read_array(path) if get_suffix(path) == ".json" else None
    if items is not None:
        yield from ((f"{path}: item {number}", item) for number, item in enumerate(items))
        return
    for number, line in iterate_lines(path):
        if line.strip(BLANK):
            where = f"{path}:{number}"
            yield where, parse_json(where, line)


def _read_array(path: Path) -> list[Any] | None:
    """Read a file that is one JSON array, an object with one as `data`, or another object; None for lines of JSON."""
    try:
        value = parse_json(str(path), read_text(path))
    except DataError:
        return None
    if isinstance(value, dict):
        value = value.get("data", [value])
    if isinstance(value, list):
        return value
    return None


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
