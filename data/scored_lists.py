"""Shards of queries with lists of documents, and the scores that a reranker gives these."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ratchet.data.formats.flag_embedding import make_line, write_lines
from ratchet.data.tables import (
    SCORES,
    TEACHER_SCORES,
    list_shards,
    read_listed,
    read_texts,
    write_table,
)
from ratchet.errors import DataError

LEAST_ACCURACY = 0.6
"""Accuracy of a teacher below which training on labels alone was better: see docs/laboratory/teachers.md."""


def check_lists(folder: Path) -> None:
    """Raise DataError for shards without lists of documents."""
    names = pq.read_schema(list_shards(folder)[0]).names
    if not TEACHER_SCORES.keys() & set(names):
        raise DataError(
            f"{folder}: has none of the columns {', '.join(TEACHER_SCORES)}; expected at least one"
        )


class Lists:
    """Reader of shards of lists, and of the texts of their documents. depth: documents of each ranking; None: all."""

    def __init__(self, lists: Path, corpus: Path, depth: int | None) -> None:
        self.corpus = corpus
        self.text_of = read_texts(corpus, read_listed(lists))
        self.depth = depth

    def read(
        self, source: Path, first: int = 0, rows: int | None = None
    ) -> tuple[pa.Table, list[list[str]]]:
        """Return rows of a shard, by default all, without scores of a teacher, and the texts of each row, column by
        column."""
        table = pq.read_table(source).slice(first, rows)
        for name in TEACHER_SCORES.values():
            if name in table.column_names:
                table = table.drop_columns(name)
        if "documents" in table.column_names and self.depth is not None:
            for name in ("documents", "scores"):
                field = table.field(name)
                cut = pc.list_slice(table[name], 0, self.depth).cast(field.type)
                table = table.set_column(table.column_names.index(name), field, cut)
        texts: list[list[str]] = [[] for _ in range(len(table))]
        for name in _list_columns(table):
            for row, names in enumerate(table[name].to_pylist()):
                try:
                    texts[row] += self.text_of.find(names)
                except KeyError as error:
                    raise DataError(
                        f"{source}: row {first + row}: {error} is not in {self.corpus}; expected a document's id; use"
                        " the corpus of these lists"
                    ) from None
        return table, texts


def _list_columns(table: pa.Table) -> list[str]:
    return [name for name in TEACHER_SCORES if name in table.column_names]


def write_scores(
    target: Path, table: pa.Table, scores: Sequence[np.ndarray], tokens: int
) -> dict[str, int]:
    """Write a shard with the scores of each row, in the order of the texts of `Lists.read`. Return the counts of rows,
    pairs, tokens, lists with a positive and a negative (`compared`), and lists where a positive has the highest score
    (`positive_first`)."""
    start = [0] * len(table)
    for name in _list_columns(table):
        parts = []
        for row, length in enumerate(map(len, table[name].to_pylist())):
            parts.append(scores[row][start[row] : start[row] + length])
            start[row] += length
        table = table.append_column(TEACHER_SCORES[name], pa.array(parts, SCORES))
    write_table(target, table)
    compared, first = _compare(table)
    return {
        "rows": len(table),
        "pairs": sum(start),
        "tokens": tokens,
        "compared": compared,
        "positive_first": first,
    }


def _compare(table: pa.Table) -> tuple[int, int]:
    """Return how many rows have scores of positives and of negatives, and in how many a positive has the highest."""
    compared = first = 0
    if not {"positives", "negatives"} <= set(table.column_names):
        return compared, first
    positive = table[TEACHER_SCORES["positives"]].to_pylist()
    negative = table[TEACHER_SCORES["negatives"]].to_pylist()
    for right, wrong in zip(positive, negative, strict=True):
        if right and wrong:
            compared += 1
            first += max(right) > max(wrong)
    return compared, first


def describe_teacher(counts: Mapping[str, int]) -> tuple[dict[str, float], str]:
    """Return the metric `teacher_accuracy`, the fraction of lists where a positive has the highest score, and a note if
    it is low. counts: sums of the counts of `write_scores`. Rankings have no such metric."""
    if not counts.get("compared"):
        return {}, ""
    accuracy = counts["positive_first"] / counts["compared"]
    note = ""
    if accuracy < LEAST_ACCURACY:
        note = (
            f"the teacher puts a positive first in {accuracy:.0%} of the lists; below {LEAST_ACCURACY:.0%} it may do"
            " harm"
        )
    return {"teacher_accuracy": round(accuracy, 4)}, note


def write_flag_embedding(folder: Path, corpus: Path) -> None:
    """Write positives and negatives also as FlagEmbedding JSONL. Rankings are not written."""
    shards = list_shards(folder)
    if "positives" not in pq.read_schema(shards[0]).names:
        return
    text_of = read_texts(corpus, read_listed(folder))

    def make_lines() -> Iterator[dict[str, Any]]:
        for path in shards:
            for row in pq.read_table(path).to_pylist():
                yield make_line(row, text_of.find)

    write_lines(folder / "flag_embedding.jsonl", make_lines())
