"""Union of several data sets."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np

from ratchet.data.retrieval import SAMPLE, Document, LargeCorpus, Query, RetrievalData, sample
from ratchet.data.retrieval.checks import check_data
from ratchet.data.retrieval.spilled import Selection, Spilled, hash_each, number_by_appearance

Part = tuple[str, RetrievalData, str, Mapping[str, Sequence[str]]]
"""The path of a data set, what was read, the split that all its queries are for (valid, test or empty), and its options
(see `ratchet.data.formats.pairs.parse_options`)."""


def unite(parts: Sequence[Part], *, sampled: bool = False) -> RetrievalData:
    """Unite data sets. Equal texts are one document. Ids that a reader assigned are prefixed by the data set's number.

    A part for a split contributes its queries of that split, or all if it has none. Queries of that split in other
    parts are left out. sampled: of large corpora only the samples. Raises DataError for an id that two texts or two
    queries have."""
    if len(parts) == 1 and not any(parts[0][2:]):
        return parts[0][1]
    corpus = _UnitedCorpus(parts, sampled)
    own = {split for _, _, split, _ in parts}
    notes: Counter[str] = Counter()

    def queries() -> Iterator[Query]:
        for number, (place, data, split, options) in enumerate(parts):
            task = options.get("instruction", [""])[0]
            prefix = corpus.prefix(number, data.numbered)
            everything = split and not any(query.split == split for query in data.queries)
            for query in data.queries:
                if not everything and (query.split != split if split else query.split in own):
                    notes["queries of another split, left out"] += 1
                    continue
                made = _rename(query, partial(corpus.rename, number))
                made = made._replace(id=f"{prefix}{query.id}", source=number, split=split or query.split)
                yield made._replace(task=task or query.task, where=query.where or place)

    found = Spilled(queries(), Query._make)
    for _, data, *_ in parts:
        notes.update(data.notes)
    weights = [float(options.get("weight", ["1"])[0]) for *_, options in parts]
    sizes = [(len(data.queries), data.share) for _, data, *_ in parts]
    share = sum(size for size, _ in sizes) / sum(size / own for size, own in sizes)
    large = LargeCorpus(corpus.read, list(islice(corpus.read(), None if sampled else SAMPLE)), corpus.size)
    unread = sorted({name for _, data, *_ in parts for name in data.unread})
    united = RetrievalData(large, found, +notes, weights=weights, share=share, unread=unread)
    return check_data(united, ", ".join(part[0] for part in parts))


class _UnitedCorpus:
    """The documents of several data sets, each text only from the first set that has it."""

    def __init__(self, parts: Sequence[Part], sampled: bool) -> None:
        self._parts = [(place, sample(data.corpus) if sampled else data.corpus) for place, data, *_ in parts]
        hashes = []
        for _, documents in self._parts:
            hashes.append(hash_each(document.text for document in documents))
        number_N, first_U = number_by_appearance(np.concatenate(hashes))
        part_N = np.repeat(np.arange(len(parts)), list(map(len, hashes)))
        first_N = first_U[number_N]
        self._dropped_N = part_N[first_N] < part_N
        if sampled:
            known = sum(len(data.corpus) for _, data, *_ in parts)
        else:
            known = len(part_N)
        self.size = known - int(self._dropped_N.sum())
        self._names = [options.get("name", [""])[0] for *_, options in parts]
        self._is_numbered = [not next(iter(documents)).where for _, documents in self._parts]
        self._renamed: dict[tuple[int, str], str] = {}
        """(data set, id in it) -> id of the document with the same text in an earlier data set."""
        kept = dict.fromkeys(first_N[self._dropped_N].tolist(), "")
        for row, (number, document) in enumerate(self._number() if kept else ()):
            if row in kept:
                kept[row] = self.rename(number, document.id)
            if self._dropped_N[row]:
                self._renamed[number, document.id] = kept[int(first_N[row])]

    def rename(self, number: int, name: str) -> str:
        """Return the id in the united corpus of the document that data set `number` calls `name`."""
        return self._renamed.get((number, name)) or self.prefix(number, self._is_numbered[number]) + name

    def prefix(self, number: int, is_numbered: bool) -> str:
        """Return the prefix of the ids of a data set. is_numbered: whether its reader assigned them."""
        name = self._names[number] or (str(number) if is_numbered and len(self._parts) > 1 else "")
        if name:
            return f"{name}/"
        return ""

    def read(self) -> Iterator[Document]:
        for is_dropped, (number, document) in zip(self._dropped_N, self._number(), strict=True):
            if not is_dropped:
                where = document.where or self._parts[number][0]
                yield replace(document, id=self.rename(number, document.id), where=where)

    def _number(self) -> Iterator[tuple[int, Document]]:
        """Yield each document with the number of its data set."""
        return ((number, document) for number, (_, own) in enumerate(self._parts) for document in own)


def _rename(query: Query, rename: Callable[[str], str]) -> Query:
    """Return the query with new document ids, each once, and with the grades and scores that belong to them."""
    positives, negatives = (list(map(rename, names)) for names in (query.positives, query.negatives))
    kept = []
    for i, name in enumerate(positives):
        if name not in positives[:i]:
            kept.append(i)
    others = []
    for i, name in enumerate(negatives):
        if name not in negatives[:i] and name not in positives:
            others.append(i)
    teacher = query.teacher and (tuple(query.teacher[0][i] for i in kept), tuple(query.teacher[1][i] for i in others))
    labels = tuple(positives[i] for i in kept), tuple(query.grades[i] for i in kept)
    negatives = [negatives[i] for i in others]
    return query._replace(positives=labels[0], grades=labels[1], negatives=tuple(negatives), teacher=teacher)


def weigh(queries: Sequence[Query], weights: Sequence[float], seed: int) -> Sequence[Query]:
    """Draw weight x N of the N queries of each data set, rounded. Above 1, queries are repeated. The order is kept."""
    source_Q = np.fromiter((query.source for query in queries), np.int64, len(queries))
    times_Q = np.ones(len(queries), np.int64)
    for source, weight in enumerate(weights):
        own = np.flatnonzero(source_Q == source)
        whole, rest = divmod(round(weight * len(own)), max(1, len(own)))
        times_Q[own] = whole
        times_Q[random.Random(f"{seed}/{source}").sample(own.tolist(), rest)] += 1
    return Selection(queries, np.repeat(np.arange(len(queries)), times_Q))
