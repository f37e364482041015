"""Texts in a JSON Lines file or a text file: one document per line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ratchet.data.formats.text_files import BLANK, read_field, read_json_objects
from ratchet.data.retrieval import refuse_repeated
from ratchet.data.tables import CORPUS, write_table
from ratchet.files import iterate_lines

SUFFIXES = (".jsonl", ".txt")


def write_text_shards(path: Path, folder: Path, rows_per_shard: int = 4096) -> None:
    """Write the texts of a file as shards of `CORPUS`. Lines of `.jsonl` have `text`, and optionally `_id` or `id`; of
    `.txt` the whole line is the text. The default id is the number of the line. Holds one shard, and the ids.

    Raises DataError, naming file and line.
    """
    rows = _read_rows(path)
    for number in itertools.count():
        shard = list(itertools.islice(rows, rows_per_shard))
        if number and not shard:
            return
        write_table(folder / f"shard-{number:05d}.parquet", pa.Table.from_pylist(shard, CORPUS))


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    places: dict[str, str] = {}
    if path.suffix == ".txt":
        lines = ((number, line.strip(BLANK)) for number, line in iterate_lines(path))
        yield from ({"id": str(number), "text": line} for number, line in lines if line)
        return
    for where, row in read_json_objects(path):
        name = str(row.get("_id", row.get("id", where.rpartition(":")[2])))
        refuse_repeated(places, name, where, "id")
        yield {"id": name, "text": read_field(where, row, "text", str)}
