"""Union of several data sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.data.retrieval.checks import check_data

Part = tuple[str, RetrievalData, str, Mapping[str, Sequence[str]]]
"""The path of a data set, what was read, the split that all its queries are for (valid, test or empty), and its options
(see `ratchet.data.formats.pairs.parse_options`)."""


def unite(parts: Sequence[Part]) -> RetrievalData:
    """Unite data sets. Equal texts are one document. Ids that a reader assigned are prefixed by the data set's number.

    A part for a split contributes its queries of that split, or all if it has none. Queries of that split in other
    parts are left out. Raises DataError for an id that two texts or two queries have."""
    if len(parts) == 1 and not any(parts[0][2:]):
        return parts[0][1]
    splits = {split for _, _, split, _ in parts}
    notes: Counter[str] = Counter()
    corpus: list[Document] = []
    queries: list[Query] = []
    first: dict[
        str, tuple[int, str]
    ] = {}  # text -> the first data set that has it, and its id there
    documents = 0
    for number, (place, data, split, options) in enumerate(parts):
        documents += data.num_documents
        notes.update(data.notes)
        document_prefix = _choose_prefix(options, number, len(parts), not data.corpus[0].where)
        renamed: dict[str, str] = {}
        for document in data.corpus:
            name = document_prefix + document.id
            source, known = first.setdefault(document.text, (number, name))
            if source < number:  # each text only from the first set that has it
                renamed[document.id] = known
                documents -= 1
            else:
                renamed[document.id] = name
                corpus.append(replace(document, id=name, where=document.where or place))
        query_prefix = _choose_prefix(options, number, len(parts), data.numbered)
        everything = split and not any(query.split == split for query in data.queries)
        for query in data.queries:
            if split:
                belongs = everything or query.split == split
            else:
                belongs = query.split not in splits
            if not belongs:
                notes["queries of another split, left out"] += 1
                continue
            query = _rename(query, renamed, document_prefix)
            query = query._replace(
                id=query_prefix + query.id, source=number, where=query.where or place
            )
            task = options.get("instruction", [""])[0]
            queries.append(query._replace(task=task or query.task, split=split or query.split))
    rows = sum(len(data.queries) for _, data, *_ in parts)
    share = rows / sum(len(data.queries) / data.share for _, data, *_ in parts)
    estimate = None
    if any(data.estimate is not None for _, data, *_ in parts):
        estimate = documents
    unread = sorted({name for _, data, *_ in parts for name in data.unread})
    united = RetrievalData(corpus, queries, +notes, False, share, estimate, unread)
    return check_data(united, ", ".join(part[0] for part in parts))


def _choose_prefix(
    options: Mapping[str, Sequence[str]], number: int, parts: int, is_numbered: bool
) -> str:
    """Return the prefix of the ids of a data set: its name, or its number if its reader assigned the ids."""
    if "name" in options:
        return f"{options['name'][0]}/"
    if is_numbered and parts > 1:
        return f"{number}/"
    return ""


def _rename(query: Query, renamed: Mapping[str, str], prefix: str) -> Query:
    """Return the query with new document ids, each once, and with the grades and scores that belong to them. prefix: of
    the ids of documents that were not read."""
    positives = [renamed.get(name, prefix + name) for name in query.positives]
    negatives = [renamed.get(name, prefix + name) for name in query.negatives]
    kept = []
    for i, name in enumerate(positives):
        if name not in positives[:i]:
            kept.append(i)
    others = []
    for i, name in enumerate(negatives):
        if name not in negatives[:i] and name not in positives:
            others.append(i)
    teacher = query.teacher
    if teacher:
        teacher = _choose(teacher[0], kept), _choose(teacher[1], others)
    return query._replace(
        positives=_choose(positives, kept),
        grades=_choose(query.grades, kept),
        negatives=_choose(negatives, others),
        teacher=teacher,
    )


def _choose(values: Sequence[Any], indices: Sequence[int]) -> tuple[Any, ...]:
    return tuple(values[i] for i in indices)
