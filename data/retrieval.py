"""Retrieval data: documents, queries, and which documents are relevant to which query."""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from ratchet.errors import DataError


@dataclass(frozen=True)
class Document:
    """A document of the corpus. `id` is unique. where: `file:line`, for errors."""

    id: str
    text: str
    where: str = ""


@dataclass(frozen=True)
class LargeCorpus:
    """A corpus that is not held in memory: each iteration reads it again."""

    read: Callable[[], Iterator[Document]]
    sample: Sequence[Document]
    """Its first documents, which are checked while planning. The step that copies it checks all."""
    estimate: int
    """Estimated number of documents, from the size of the files and of the sample."""

    def __iter__(self) -> Iterator[Document]:
        return self.read()

    def __len__(self) -> int:
        return self.estimate


Corpus = Sequence[Document] | LargeCorpus


@dataclass(frozen=True)
class Query:
    """A query with its relevant documents.

    group: queries of a group stay in the same split (a question with several wrong answers). split: the split that the
    source assigns. where: `file:line`, for errors. teacher: the teacher scores of the positives and of the negatives,
    if the source has them. task, prompt: the query's instruction for the embedder and for the reranker; empty: that of
    the model. source: the number of its data set, of several.
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
    source: int = 0


@dataclass(frozen=True)
class RetrievalData:
    """A corpus and queries with relevance labels. `check_data` checks that ids exist and nothing is empty."""

    corpus: Corpus
    queries: Sequence[Query]
    notes: dict[str, int] = field(default_factory=dict)
    """Counts of what was dropped or merged while reading, by a sentence that says it."""
    numbered: bool = False
    """Whether the ids of the queries are numbers that the reader gave them."""
    weights: Sequence[float] = ()
    """The fraction of the training queries that is drawn of each data set, by `Query.source`."""

    @property
    def longest_text(self) -> int:
        """Characters of the longest document or query; of a large corpus, of those of its sample."""
        texts = [*(one.text for one in _sample(self.corpus)), *(one.text for one in self.queries)]
        return max(map(len, texts))


def check_data(data: RetrievalData, source: str, least: int = 2) -> RetrievalData:
    """Return the data unchanged. Raises DataError for the first error in it, and for less than `least` documents. Of a
    large corpus the sample is checked."""
    is_large = isinstance(data.corpus, LargeCorpus)
    for _ in check_documents(_sample(data.corpus), () if is_large else data.queries, source, least):
        pass
    for query in check_queries(data.queries, source):
        where = query.where or source
        if not query.positives:
            raise DataError(
                f"{where}: query '{query.id}' has no positive; expected at least one; remove it or label it"
            )
        if both := set(query.positives) & set(query.negatives):
            raise DataError(
                f"{where}: query '{query.id}' has document '{min(both)}' as a positive and as a negative; expected one"
                " of the two; remove it from the negatives"
            )
    return data


def _sample(corpus: Corpus) -> Sequence[Document]:
    return corpus.sample if isinstance(corpus, LargeCorpus) else corpus


def check_documents(
    corpus: Iterable[Document], queries: Sequence[Query], source: str = "the corpus", least: int = 2
) -> Iterator[Document]:
    """Yield the documents unchanged. 8 bytes per document are held in memory, and the ids that queries name.

    Raises DataError for a document without text, and at the end for less than `least` documents, an id that is not
    unique, and a document that a query names and that is not there."""
    found = array("q")
    missing = {name for query in queries for name in (*query.positives, *query.negatives)}
    for document in corpus:
        if not document.text.strip():
            where = document.where or source
            raise DataError(f"{where}: document '{document.id}' has no text; expected some; remove it or fill it")
        found.append(hash(document.id))
        missing.discard(document.id)
        yield document
    if len(found) < least:
        raise DataError(
            f"{source}: {len(found)} documents in the corpus; expected at least {least}, to rank; give more"
        )
    numbers, counts = np.unique(np.frombuffer(found, np.int64), return_counts=True)
    if repeated := set(numbers[counts > 1].tolist()):  # rarely two ids with the same hash
        places: dict[str, str] = {}
        for document in corpus:
            if hash(document.id) in repeated:
                refuse_repeated(places, document.id, document.where or source, "document id")
    for query in queries if missing else ():
        for name in (*query.positives, *query.negatives):
            if name in missing:
                raise DataError(
                    f"{query.where or source}: query '{query.id}' names document '{name}', which is not in the corpus;"
                    " add or remove it"
                )


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
    queries: Sequence[Query],
    test_fraction: float,
    validation_fraction: float,
    seed: int,
    source: str = "split",
    *,
    split_by: str = "question",
    folds: int = 1,
    fold: int = 0,
) -> dict[str, list[Query]]:
    """Split queries into train, and into valid and test unless their fraction is 0. The order of the queries is kept.

    Splits that the source assigns are kept. The others are drawn by group: `test_fraction` of all groups, then
    `validation_fraction` of the remaining ones. split_by: a group is a `question` (`Query.group`), a `query`, or with
    `document` all queries that are connected by shared positives. Then, and with several `folds`, fractions are of the
    queries, and a group is drawn if the split comes nearer to its fraction. With several folds, test is one of so many
    parts of about the same size, which together hold every query once. Raises DataError, naming `source`, if a split
    would be empty, a group is too large, or the source assigns a split that the settings exclude.
    """
    if not any(query.split in (None, "train") for query in queries):  # evaluated whole
        found = {name: [query for query in queries if query.split == name] for name in ("train", "valid", "test")}
        if not found["test"]:
            raise DataError(f"{source}: only queries for valid; expected some to train on or for test; add them")
        return found
    by_document = split_by == "document"
    shares = {"test": test_fraction if folds == 1 else 1 / folds, "valid": validation_fraction}
    given = {query.split: query for query in reversed(queries) if query.split in shares}
    for name, query in given.items():
        if by_document or not shares[str(name)] or (folds > 1 and name == "test"):
            raise DataError(
                f"{query.where or source}: the data assign query '{query.id}' to {name}; expected no such split with"
                " split_by=document, folds or a fraction of 0; remove it from the data, or leave out the setting"
            )
    members = {"train", *given, *(name for name, share in shares.items() if share)}
    shares |= dict.fromkeys(map(str, given), 0.0)
    free = [query for query in queries if query.split in (None, "train")]
    group_of = _connect(free) if by_document else {q.id: q.id if split_by == "query" else q.group for q in free}
    groups = list(dict.fromkeys(group_of.values()))
    random.Random(seed).shuffle(groups)
    weights = Counter(group_of.values() if by_document or folds > 1 else groups)

    def count(total: int) -> tuple[int, int]:
        tests = round(total * shares["test"])
        return tests, round((total - tests) * shares["valid"])

    total = weights.total()
    most = -(-total // folds) if folds > 1 else total - sum(count(total))
    name, largest = max(weights.items(), key=itemgetter(1), default=("", 0))
    if by_document and largest > most:
        raise DataError(
            f"{source}: {largest:,} of {total:,} queries are connected by shared positives, such as document '{name}';"
            f" expected at most {most:,}, so that the splits share no document; lower the fractions or folds, or set"
            " split_by=question"
        )
    drawn = _draw_fold(groups, weights, folds, fold) if folds > 1 else _draw(groups, weights, count(total)[0])
    side = dict.fromkeys(drawn, "test")
    rest = [group for group in groups if group not in side]
    left = sum(weights[group] for group in rest)
    side |= dict.fromkeys(_draw(rest, weights, round(left * shares["valid"])), "valid")
    sides: dict[str, list[Query]] = {name: [] for name in ("train", "valid", "test") if name in members}
    for query in queries:
        sides[str(query.split) if query.split in given else side.get(group_of[query.id], "train")].append(query)
    for name, chosen in sides.items():
        if not chosen:
            each, wanted = max(1, total // max(1, len(groups))), sum(share > 0 for share in shares.values())
            sizes = ((n, n * each, count(n * each)) for n in range(1, 10_000))
            enough = next((n for n, all_, c in sizes if all_ > sum(c) and sum(2 * k >= each for k in c) == wanted), 0)
            raise DataError(
                f"{source}: {len(queries)} queries in {len(groups)} groups leave none for {name}; expected at least"
                f" {max(enough, folds)} groups with these fractions; give more, or set prepare.test_fraction and"
                " prepare.validation_fraction"
            )
    return sides


def leave_out_labels(train: Sequence[Query], held_out: Sequence[Query], fraction: float) -> list[Query]:
    """Return the training queries without those of some labels, so that at least this fraction of the held-out queries
    has no positive of a training query. Labels of few training queries are left out first: they cost the least."""
    trained = Counter(name for query in train for name in query.positives)
    seen = [query for query in held_out if any(name in trained for name in query.positives)]
    seen.sort(key=lambda query: sum(trained[name] for name in query.positives))
    missing = math.ceil(fraction * len(held_out)) - (len(held_out) - len(seen))
    left_out = {name for query in seen[: max(0, missing)] for name in query.positives}
    return [query for query in train if left_out.isdisjoint(query.positives)]


def _connect(queries: Sequence[Query]) -> dict[str, str]:
    """Return the group of each query: one document of those that are connected by shared positives (union-find)."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            root[name] = name = root[root[name]]
        return name

    for query in queries:
        for other in query.positives:
            root[find(other)] = find(query.positives[0])
    return {query.id: find(query.positives[0]) for query in queries}


def _draw(groups: Sequence[str], weights: Mapping[str, int], size: int) -> list[str]:
    """Return the first groups each of which brings a split nearer to that size."""
    drawn = []
    for group in groups:
        if weights[group] <= 2 * size:
            drawn.append(group)
            size -= weights[group]
    return drawn


def _draw_fold(groups: Sequence[str], weights: Mapping[str, int], folds: int, fold: int) -> list[str]:
    """Return the groups of a fold: the largest groups come first, each goes to the fold that is smallest by then."""
    parts: list[list[str]] = [[] for _ in range(folds)]
    sizes = [0] * folds
    for group in sorted(groups, key=lambda group: -weights[group]):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(group)
        sizes[smallest] += weights[group]
    return parts[fold]
