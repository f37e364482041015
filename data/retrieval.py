"""Retrieval data in memory: documents, queries, and which documents are relevant to which query."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from ratchet.errors import DataError


@dataclass(frozen=True)
class Document:
    """A document of the corpus. `id` is unique. where: `file:line`, for errors."""

    id: str
    text: str
    where: str = ""


@dataclass(frozen=True)
class Query:
    """A query with its relevant documents.

    group: queries of a group stay in the same split (a question with several wrong answers). split: the split that the
    source assigns. where: `file:line`, for errors. teacher: the teacher scores of the positives and of the negatives,
    if the source has them. task, prompt: the query's instruction for the embedder and for the reranker; empty: that of
    the model.
    """

    id: str
    text: str
    positives: tuple[str, ...]
    grades: tuple[int, ...]
    negatives: tuple[str, ...] = ()
    group: str = ""
    split: str | None = None
    where: str = ""
    teacher: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    task: str = ""
    prompt: str = ""


@dataclass(frozen=True)
class RetrievalData:
    """A corpus and queries with relevance labels. `check_data` checks that ids exist and nothing is empty."""

    corpus: Sequence[Document]
    queries: Sequence[Query]
    notes: dict[str, int] = field(default_factory=dict)
    """Counts of what was dropped or merged while reading, by a sentence that says it."""

    @property
    def longest_text(self) -> int:
        """Characters of the longest document or query."""
        return max(len(text) for text in (*(d.text for d in self.corpus), *(q.text for q in self.queries)))


def check_data(data: RetrievalData, source: str) -> RetrievalData:
    """Return the data unchanged. Raises DataError for the first error in it."""
    if not data.corpus:
        raise DataError(f"{source}: the corpus is empty; expected at least two documents; check the path")
    if len(data.corpus) < 2:
        raise DataError(f"{source}: one document in the corpus; expected at least two, to rank them; give more")
    known: dict[str, str] = {}
    for document in data.corpus:
        where = document.where or source
        refuse_repeated(known, document.id, where, "document id")
        if not document.text.strip():
            raise DataError(f"{where}: document '{document.id}' has no text; expected some; remove it or fill it")
    for query in check_queries(data.queries, source):
        where = query.where or source
        if not query.positives:
            raise DataError(
                f"{where}: query '{query.id}' has no positive; expected at least one; remove it or label it"
            )
        for name in (*query.positives, *query.negatives):
            if name not in known:
                raise DataError(
                    f"{where}: query '{query.id}' names document '{name}', which is not in the corpus; add or remove it"
                )
        if both := set(query.positives) & set(query.negatives):
            raise DataError(
                f"{where}: query '{query.id}' has document '{min(both)}' as a positive and as a negative; expected one"
                " of the two; remove it from the negatives"
            )
    return data


def check_queries(queries: Sequence[Query], source: str) -> Sequence[Query]:
    """Return the queries unchanged. Raises DataError if there are none, for a repeated id and for an empty text."""
    if not queries:
        raise DataError(f"{source}: there are no queries; expected at least one; check the path")
    seen: dict[str, str] = {}
    for query in queries:
        where = query.where or source
        refuse_repeated(seen, query.id, where, "query id")
        if not query.text.strip():
            raise DataError(f"{where}: query '{query.id}' has no text; expected some; remove it or fill it")
    return queries


def refuse_repeated(places: dict[str, str], name: str, where: str, what: str) -> None:
    """Remember where a name stands. Raises DataError, with both places, if it stands somewhere else already."""
    first = places.setdefault(name, where)
    if first != where:
        raise DataError(f"{where}: {what} '{name[:60]}' is also at {first}; expected unique ids; rename or remove one")


def split_queries(
    queries: Sequence[Query], test_fraction: float, validation_fraction: float, seed: int, source: str = "split"
) -> dict[str, list[Query]]:
    """Split queries into train, valid and test. Groups stay together, and the order of the queries is kept.

    Splits that the source assigns are kept. The others are drawn by group: `test_fraction` of all groups, then
    `validation_fraction` of the remaining ones. Raises DataError, naming `source`, if a split would be empty.
    """
    sides: dict[str, list[Query]] = {"train": [], "valid": [], "test": []}
    given = {query.split for query in queries if query.split}
    side: dict[str, str] = {}
    groups = list(dict.fromkeys(query.group for query in queries if query.split is None or query.split == "train"))
    random.Random(seed).shuffle(groups)

    def count(groups: int) -> tuple[int, int]:
        tests = 0 if "test" in given else round(groups * test_fraction)
        return tests, 0 if "valid" in given else round((groups - tests) * validation_fraction)

    tests, valids = count(len(groups))
    for position, group in enumerate(groups):
        side[group] = "test" if position < tests else "valid" if position < tests + valids else "train"
    for query in queries:
        drawn = query.split in (None, "train")
        sides[side[query.group] if drawn else str(query.split)].append(query)
    for name, members in sides.items():
        if not members:
            drawn_splits = len({"test", "valid"} - given)
            enough = next(
                (n for n in range(1, 10_000) if n > sum(count(n)) and sum(map(bool, count(n))) == drawn_splits), 10_000
            )
            raise DataError(
                f"{source}: {len(queries)} queries in {len(groups)} groups leave none for {name}; expected at least"
                f" {enough} groups with these fractions; give more, or set prepare.test_fraction and"
                " prepare.validation_fraction"
            )
    return sides
