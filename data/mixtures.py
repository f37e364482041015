"""Several data sets as one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ratchet.data.retrieval import Document, Query, RetrievalData, check_data
from ratchet.errors import DataError

Part = tuple[str, RetrievalData, str, Mapping[str, Sequence[str]]]
"""The path of a data set, what was read, the split that all its queries are for (valid, test or empty), and its options
(see `ratchet.data.formats.pairs.parse_options`)."""


def unite(parts: Sequence[Part]) -> RetrievalData:
    """Put data sets together: a text is one document. Ids that a reader gave get the number of the data set in front.

    A part for a split has its queries of that split, or all if it has none; it replaces this split of the other parts.
    Raises DataError for an id that stands for two texts or two queries."""
    if len(parts) == 1 and not any(parts[0][2:]):
        return parts[0][1]
    corpus: dict[str, Document] = {}
    queries: dict[str, Query] = {}
    earlier: dict[str, str] = {}
    notes: Counter[str] = Counter()
    for number, (place, data, split, options) in enumerate(parts):
        task, prefix = options.get("instruction", [""])[0], "".join(f"{name}/" for name in options.get("name", ()))
        numbered = prefix or (f"{number}/" if len(parts) > 1 else "")
        ids: dict[str, str] = {}
        documents = list(data.corpus)
        for document in documents:
            id = f"{prefix if document.where else numbered}{document.id}"
            new = replace(document, id=id, where=document.where or place)
            ids[document.id] = earlier.get(document.text, id)
            if ids[document.id] == id and (first := corpus.setdefault(id, new)).text != new.text:
                raise _refuse(new, first, "document")
        earlier |= {document.text: ids[document.id] for document in reversed(documents)}
        kept = [q for q in data.queries if (q.split == split if split else q.split not in {part[2] for part in parts})]
        kept = kept or list(data.queries) * bool(split)
        notes.update({**data.notes, "queries of another split, left out": len(data.queries) - len(kept)})
        for query in kept:
            made = replace(_rename(query, ids), id=f"{numbered if data.numbered else prefix}{query.id}", source=number)
            made = replace(made, split=split or query.split, task=task or query.task, where=query.where or place)
            if (other := queries.setdefault(made.id, made)) is not made:
                raise _refuse(made, other, "query")
    weights = [float(options.get("weight", ["1"])[0]) for *_, options in parts]
    united = RetrievalData(list(corpus.values()), list(queries.values()), +notes, weights=weights)
    return check_data(united, ", ".join(part[0] for part in parts))


def _refuse(new: Document | Query, first: Document | Query, kind: str) -> DataError:
    return DataError(
        f"{new.where}: {kind} id '{new.id[:60]}' is also at {first.where}, in another data set; expected unique ids;"
        " give one of the two a name, which then stands in front of its ids: '?name=NAME' behind the path"
    )


def _rename(query: Query, ids: Mapping[str, str]) -> Query:
    """Return the query with new ids of documents, each once, and with what belongs to them."""
    positives, negatives = ([ids[name] for name in names] for names in (query.positives, query.negatives))
    kept = [i for i, name in enumerate(positives) if name not in positives[:i]]
    others = [i for i, name in enumerate(negatives) if name not in negatives[:i] and name not in positives]
    teacher = query.teacher and (tuple(query.teacher[0][i] for i in kept), tuple(query.teacher[1][i] for i in others))
    labels = tuple(positives[i] for i in kept), tuple(query.grades[i] for i in kept)
    negatives = [negatives[i] for i in others]
    return replace(query, positives=labels[0], grades=labels[1], negatives=tuple(negatives), teacher=teacher)


def weigh(queries: Sequence[Query], weights: Sequence[float], seed: int) -> list[Query]:
    """Draw weight x N of the N queries of each data set, rounded; above 1 each is repeated. The order is kept."""
    times: dict[int, int] = {}
    for source, weight in enumerate(weights):
        own = [row for row, query in enumerate(queries) if query.source == source]
        whole, rest = divmod(round(weight * len(own)), max(1, len(own)))
        drawn = set(random.Random(f"{seed}/{source}").sample(own, rest))
        times |= {row: whole + (row in drawn) for row in own}
    return [query for row, query in enumerate(queries) for _ in range(times.get(row, 1))]
