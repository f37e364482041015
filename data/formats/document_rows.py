"""Documents as rows of a table, with all their columns, or as the corpus of retrieval data."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.data.formats import beir, eedi
from ratchet.data.formats.columns import COLUMNS, parse_options
from ratchet.data.formats.detection import load_retrieval
from ratchet.data.formats.pairs import read_name, read_objects
from ratchet.data.formats.text_files import fill_template, read_filled
from ratchet.data.retrieval.checks import refuse_repeated
from ratchet.errors import DataError

TEXTS = ("text", "document", "passage", "content", "body", *COLUMNS["query"])
"""Default names of the column of texts, of which the first that exists is read."""


def read_document_rows(path: Path, options: str) -> Iterator[dict[str, Any]]:
    """Yield id, text and metadata (the other columns, as JSON) of each document. Documents of retrieval data (BEIR,
    Eedi, pairs) have no metadata, and its queries are not read. options: as behind a path, `text=body&id=sku`. Raises
    DataError naming file and line."""
    given = parse_options(options, str(path))
    places: dict[str, str] = {}
    is_folder = beir.is_folder(path) or eedi.is_known(path, labelled=True)
    for number, (where, row, _, _) in enumerate(
        () if is_folder else read_objects(path, given, False)
    ):
        named = [*given.get("query", ()), *given.get("template", ())]
        if not named and _find(row, COLUMNS["query"]) and _find(row, COLUMNS["positive"]):
            is_folder = True
            break
        columns = given.get("id", COLUMNS["id"])
        name = read_name(where, row, _find(row, columns), "id") or f"d{number}"
        refuse_repeated(places, name, where, "document id")
        text_columns = _find(row, given.get("query", TEXTS))
        if "template" in given:
            text = fill_template(where, given["template"][0], row)
        elif text_columns:
            text = read_filled(where, row, text_columns[0])
        else:
            raise DataError(
                f"{where}: no column for the text; found {', '.join(row)}; expected"
                f" {' or '.join(given.get('query', TEXTS))}; rename one, or name it behind the path as '?text=NAME'"
            )
        used = (*_find(row, columns)[:1], *text_columns[:1])
        others = {key: value for key, value in row.items() if key not in used}
        metadata = json.dumps(others, ensure_ascii=False, default=str)
        yield {"id": name, "text": text, "metadata": metadata}
    if is_folder:
        for document in load_retrieval(path, options).corpus:
            yield {"id": document.id, "text": document.text, "metadata": "{}"}


def _find(row: dict[str, Any], names: Any) -> list[str]:
    return [name for name in names if name in row]
