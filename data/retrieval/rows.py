"""Queries and documents from rows that bring their texts: pairs, triplets, FlagEmbedding's lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.errors import DataError


class Row(NamedTuple):
    """A query and texts of documents. key: equal in rows of the same query. Other fields: see `Query`."""

    key: Any
    text: str
    positives: Sequence[str]
    negatives: Sequence[str]
    group: str
    where: str
    id: str = ""
    task: str = ""
    prompt: str = ""
    teacher: tuple[Sequence[float], Sequence[float]] | None = None
    split: str | None = None


class RepeatedQuery:
    """The rows of one query, put together."""

    def __init__(self, first: Row) -> None:
        self.first = first
        self.grouped = first
        """The first row with a group. Rows without one have the query's text as theirs."""
        self.positives: dict[str, float] = {}
        self.negatives: dict[str, float] = {}
        """Id of a document -> its first teacher score, 0 without a teacher."""

    def add(self, row: Row, ids: dict[str, str]) -> None:
        """Add a row. ids: text -> id of its document; new texts are added. Raises DataError for another group."""
        if self.grouped.group == self.grouped.text:
            self.grouped = row
        if row.group not in (row.text, self.grouped.group):
            raise DataError(
                f"{row.where}: group '{row.group[:60]}' given for a query that has group"
                f" '{self.grouped.group[:60]}' at {self.grouped.where}; expected one group per query; correct it"
            )
        for number, (found, texts) in enumerate(
            ((self.positives, row.positives), (self.negatives, row.negatives))
        ):
            for at, text in enumerate(texts):
                score = 0.0
                if row.teacher is not None:
                    score = row.teacher[number][at]
                found.setdefault(ids.setdefault(text, f"d{len(ids)}"), score)

    def make_query(self, number: int) -> Query:
        """Return the query. A document that is a positive of one row is no negative."""
        row = self.first
        negatives = {}
        for name, score in self.negatives.items():
            if name not in self.positives:
                negatives[name] = score
        teacher = None
        if row.teacher is not None:
            teacher = tuple(self.positives.values()), tuple(negatives.values())
        grades = (1,) * len(self.positives)
        return Query(
            row.id or f"q{number}",
            row.text,
            tuple(self.positives),
            grades,
            tuple(negatives),
            self.grouped.group,
            row.split,
            row.where,
            teacher,
            row.task,
            row.prompt,
        )


def number_rows(
    rows: Iterable[Row], others: Iterable[str] = (), share: float = 1.0
) -> RetrievalData:
    """Return the queries of rows, and their distinct texts as documents; those of `others` come last.

    Ids are `d0`, ... and, for rows without one, `q0`, ..., in the order of appearance. A repeated query has the
    positives of all its rows, and the negatives of all its rows that are no positives, each with its first score:
    otherwise a positive of one row would be mined as a negative of another. Either all rows or none have a teacher,
    with a score for each text. share: see `RetrievalData`."""
    ids: dict[str, str] = {}
    found: dict[Any, RepeatedQuery] = {}
    count = 0
    named = False
    for row in rows:
        if row.key not in found:
            found[row.key] = RepeatedQuery(row)
        found[row.key].add(row, ids)
        count += 1
        named = named or bool(row.id)
    for text in others:
        ids.setdefault(text, f"d{len(ids)}")
    corpus = [Document(name, text) for text, name in ids.items()]
    queries = []
    for number, query in enumerate(found.values()):
        queries.append(query.make_query(number))
    estimate = None
    if share < 1:
        estimate = round(len(corpus) / share)
    notes = {"rows that repeat a query, put together": count - len(queries)}
    return RetrievalData(corpus, queries, notes, numbered=not named, share=share, estimate=estimate)
