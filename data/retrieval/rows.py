"""Queries and documents from rows that bring their texts: pairs, triplets, FlagEmbedding's lines.

Memory holds 8 bytes for each text of a row, some 40 while they are numbered, and no texts (see `spilled`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, islice
from typing import Any, NamedTuple

import numpy as np

from ratchet.data.retrieval import SAMPLE, Document, LargeCorpus, Query, RetrievalData
from ratchet.data.retrieval.spilled import Spilled, number_by_appearance
from ratchet.errors import DataError


class Row(NamedTuple):
    """A query and texts of documents. key: equal in rows of the same query, None for documents without a query. Other
    fields: see `Query`."""

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


def number_rows(rows: Iterable[Row], others: Iterable[str] = (), share: float = 1.0) -> RetrievalData:
    """Return the queries of rows, and their distinct texts as documents; those of `others` come last.

    Ids are `d0`, ... and, for rows without one, `q0`, ..., in the order of appearance. A repeated query has the
    positives of all its rows, and the negatives of all its rows that are no positives, each with its first score:
    otherwise a positive of one row would be mined as a negative of another. Either all rows or none have a teacher,
    with a score for each text. share: see `RetrievalData`."""
    keys = array("q")
    texts = array("q")
    sizes = array("q", [0])
    named = False
    scores = array("d")
    groups = array("q")

    def count(row: Row) -> Row:
        nonlocal named
        named = named or bool(row.id)
        if row.key is not None:
            keys.append(hash(row.key))
            groups.append(hash(row.group))
        for own in (row.positives, row.negatives):
            texts.extend(map(hash, own))
            sizes.append(len(own))
        scores.extend(chain(*row.teacher or ()))
        return row

    kept = Spilled(map(count, chain(rows, (Row(None, "", (text,), (), "", "") for text in others))), Row._make)
    document_T, first_D = number_by_appearance(np.asarray(texts))
    query_R, first_Q = number_by_appearance(np.asarray(keys))
    start_R = np.cumsum(np.asarray(sizes))
    row_R = np.argsort(query_R, kind="stable")
    after_Q = np.cumsum(np.bincount(query_R, minlength=1))

    is_first_T = np.isin(np.arange(len(document_T)), first_D, assume_unique=True)

    def documents() -> Iterator[Document]:
        texts = chain.from_iterable((*row.positives, *row.negatives) for row in kept)
        yield from (Document(f"d{number}", text) for number, text in enumerate(compress(texts, is_first_T)))

    def queries() -> Iterator[Query]:
        for number, row in zip(range(len(keys)), kept, strict=False):
            query = int(query_R[number])
            if first_Q[query] != number:
                continue
            same = row_R[after_Q[query - 1] if query else 0 : after_Q[query]].tolist()
            ends = []
            for side in (0, 1):
                ends.append([start_R[2 * row + side : 2 * row + side + 2] for row in same])
            positives, negatives = (find_first([t for start, end in own for t in range(start, end)]) for own in ends)
            if len({groups[other] for other in same}) == 1:
                group = row.group
            else:
                group = find_group(same)
            left = {}
            for name, place in negatives.items():
                if name not in positives:
                    left[name] = place
            right, wrong = (tuple(scores[t] for t in own.values()) if scores else () for own in (positives, left))
            labels = (tuple(positives), (1,) * len(positives), tuple(left))
            about = (row.task, row.prompt)
            if scores:
                teacher = (right, wrong)
            else:
                teacher = None
            yield Query(row.id or f"q{query}", row.text, *labels, group, row.split, row.where, teacher, *about)

    def find_group(same: Sequence[int]) -> str:
        """Return the one group of rows that repeat a query. Rows without a group have the query's text as theirs."""
        rows = [kept[number] for number in same]
        given = [row for row in rows if row.group != row.text] or rows
        for row in given:
            if row.group != given[0].group:
                raise DataError(
                    f"{row.where}: group '{row.group[:60]}' given for a query that has group '{given[0].group[:60]}' at"
                    f" {given[0].where}; expected one group per query; correct it"
                )
        return given[0].group

    def find_first(places: Sequence[int]) -> dict[str, int]:
        found: dict[str, int] = {}  # id of a document -> the first of its places
        for place, number in zip(places, document_T[places].tolist(), strict=True):
            found.setdefault(f"d{number}", place)
        return found

    corpus = LargeCorpus(documents, list(islice(documents(), SAMPLE)), round(len(first_D) / share))
    notes = {"rows that repeat a query, put together": len(keys) - len(first_Q)}
    return RetrievalData(corpus, Spilled(queries(), Query._make), notes, numbered=not named, share=share)
