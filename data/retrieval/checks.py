"""Checks of all retrieval data: ids are unique and known, queries are not empty. Documents may be empty, as they
are in published sets. Readers check that each query has a positive, and that no positive is a negative too."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np

from ratchet.data.retrieval import Corpus, Document, LargeCorpus, Query, RetrievalData, sample
from ratchet.data.retrieval.spilled import hash_names
from ratchet.errors import DataError

T = TypeVar("T", Document, Query)


def check_data(data: RetrievalData, source: str, least: int = 2) -> RetrievalData:
    """Return the data unchanged. Raises DataError for the first error in it, and for fewer than `least` documents. Of a
    large corpus only the sample is checked."""
    is_large = isinstance(data.corpus, LargeCorpus)
    documents = check_documents(sample(data.corpus), () if is_large else data.queries, source, least)
    for _ in chain(documents, check_queries(data.queries, source)):
        pass
    return data


def check_documents(
    corpus: Corpus, queries: Sequence[Query], source: str = "the corpus", least: int = 2
) -> Iterator[Document]:
    """Yield the documents unchanged. Memory holds 8 bytes per document, and per id that queries name.

    Raises DataError at the end for fewer than `least` documents, an id that is not
    unique, and a positive or negative of a query that is not in the corpus."""
    named = np.unique(hash_names((*query.positives, *query.negatives) for query in queries)[0])
    found = array("q")
    yield from _check_unique(corpus, found, source, "document")
    if len(found) < least:
        raise DataError(
            f"{source}: {len(found)} documents in the corpus; expected at least {least}, to rank; give more"
        )
    missing = set(np.setdiff1d(named, np.asarray(found)).tolist())
    for query in queries if missing else ():
        for name in (*query.positives, *query.negatives):
            if hash(name) in missing:
                raise DataError(
                    f"{query.where or source}: query '{query.id}' names document '{name}', which is not in the corpus;"
                    " add or remove it"
                )


def check_queries(queries: Collection[Query], source: str) -> Iterator[Query]:
    """Yield the queries unchanged. Raises DataError if there are none, for an empty text, and at the end for a repeated
    id."""
    if not queries:
        raise DataError(f"{source}: there are no queries; expected at least one; check the path")
    yield from _check_unique(queries, array("q"), source, "query")


def _check_unique(items: Iterable[T], found: array[int], source: str, kind: str) -> Iterator[T]:
    """Yield the items unchanged, and add the hashes of their ids to `found`."""
    for item in items:
        if kind == "query" and not item.text.strip():
            where = item.where or source
            raise DataError(f"{where}: {kind} '{item.id}' has no text; expected some; remove it or fill it")
        found.append(hash(item.id))
        yield item
    numbers, counts = np.unique(np.asarray(found), return_counts=True)
    if repeated := set(numbers[counts > 1].tolist()):  # or, rarely, two ids have the same hash
        places: dict[str, str] = {}
        for item in items:
            if hash(item.id) in repeated:
                refuse_repeated(places, item.id, item.where or source, f"{kind} id")


def refuse_repeated(places: dict[str, str], name: str, where: str, what: str) -> None:
    """Record the place of a name. Raises DataError, with both places, if it already has another place."""
    first = places.setdefault(name, where)
    if first == where:
        return
    hint = ", or give one of the data sets a name, which then stands in front of its ids: '?name=NAME' behind it"
    if first.rpartition(":")[0] == where.rpartition(":")[0]:
        hint = ""
    raise DataError(
        f"{where}: {what} '{name[:60]}' is also at {first}; expected unique ids; rename or remove one{hint}"
    )
