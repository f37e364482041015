"""Shards of queries with lists of documents, and the scores that a reranker gives these."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.data.formats.flag_embedding import make_row, write_rows
from ratchet.data.tables import TEACHER_SCORES, list_shards, read_texts, write_table
from ratchet.errors import DataError


def check_lists(folder: Path) -> None:
    """Raise DataError for shards without lists of documents."""
    if not set(TEACHER_SCORES) & set(pq.read_schema(list_shards(folder)[0]).names):
        raise DataError(f"{folder}: has none of the columns {', '.join(TEACHER_SCORES)}; expected at least one")


class Lists:
    """Reads shards of lists, and the texts of their documents. depth: documents of each ranking; None: all."""

    def __init__(self, corpus: Path, depth: int | None) -> None:
        self.text_of, self.corpus, self.depth = read_texts(corpus), corpus, depth

    def read(self, source: Path) -> tuple[pa.Table, list[list[str]]]:
        """Return the table of a shard without scores, and the texts of each row, column by column."""
        table = pq.read_table(source)
        table = table.drop_columns([name for name in TEACHER_SCORES.values() if name in table.column_names])
        if "documents" in table.column_names and self.depth is not None:
            for name in ("documents", "scores"):
                cut = [own[: self.depth] for own in table[name].to_pylist()]
                table = table.set_column(
                    table.column_names.index(name), table.field(name), pa.array(cut, table.field(name).type)
                )
        lists = zip(*(table[name].to_pylist() for name in _list_columns(table)), strict=True)
        return table, [
            [self._text(source, row, name) for own in parts for name in own] for row, parts in enumerate(lists)
        ]

    def _text(self, source: Path, row: int, name: str) -> str:
        if name not in self.text_of:
            raise DataError(f"{source}: row {row}: '{name}' is not in {self.corpus}; expected a document's id")
        return self.text_of[name]


def _list_columns(table: pa.Table) -> list[str]:
    return [name for name in TEACHER_SCORES if name in table.column_names]


def write_scores(target: Path, table: pa.Table, scores: Sequence[np.ndarray], tokens: int) -> dict[str, int]:
    """Write a shard with the scores of each row, in the order of the texts of `Lists.read`. Return the counts."""
    start = [0] * len(table)
    for name in _list_columns(table):
        parts = []
        for row, length in enumerate(map(len, table[name].to_pylist())):
            parts.append(scores[row][start[row] : start[row] + length])
            start[row] += length
        ends = pa.array(np.cumsum([0, *map(len, parts)]), pa.int32())
        flat = pa.array(np.concatenate(parts) if parts else np.zeros(0, np.float32), pa.float32())
        table = table.append_column(TEACHER_SCORES[name], pa.ListArray.from_arrays(ends, flat))
    write_table(target, table)
    return {"rows": len(table), "pairs": sum(start), "tokens": tokens}


def write_flag_embedding(folder: Path, corpus: Path) -> None:
    """Write scored positives and negatives as FlagEmbedding JSONL too. Rankings are not written."""
    if "positives" not in pq.read_schema(list_shards(folder)[0]).names:
        return
    text_of = read_texts(corpus)
    rows = (row for path in list_shards(folder) for row in pq.read_table(path).to_pylist())
    write_rows(folder / "flag_embedding.jsonl", (make_row(row, text_of) for row in rows))
