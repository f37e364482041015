"""Union of several data sets."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ratchet.data.retrieval import Query, RetrievalData
from ratchet.data.retrieval.checks import check_data

Part = tuple[str, RetrievalData, str, Mapping[str, Sequence[str]]]
"""The path of a data set, what was read, the split that all its queries are for (valid, test or empty), and its options
(see `ratchet.data.formats.columns.parse_options`)."""


def unite(parts: Sequence[Part]) -> RetrievalData:
    """Unite data sets. Equal texts are one document. Ids that a reader assigned are prefixed by the data set's number.

    A part for a split contributes its queries of that split, or all if it has none. Queries of that split in other
    parts are left out. Raises DataError for an id that two texts or two queries have."""
    if len(parts) == 1 and not any(parts[0][2:]):
        return parts[0][1]
    splits = {split for _, _, split, _ in parts}
    notes: Counter[str] = Counter()
    corpus = []
    queries = []
    unread: set[str] = set()
    first: dict[str, tuple[int, str]] = {}
    """Text -> the first data set that has it, and its id there."""
    documents = 0
    rows = 0
    estimated_rows = 0.0
    for number, (place, data, split, options) in enumerate(parts):
        unread.update(data.unread)
        notes.update(data.notes)
        rows += len(data.queries)
        estimated_rows += len(data.queries) / data.share
        documents += data.num_documents
        document_prefix = query_prefix = ""
        if "name" in options:
            document_prefix = query_prefix = f"{options['name'][0]}/"
        elif len(parts) > 1:
            if not data.corpus[0].where:
                document_prefix = f"{number}/"
            if data.numbered:
                query_prefix = f"{number}/"
        own_name = options.get("name", [str(number)])[0]
        renamed = {}
        for document in data.corpus:
            name = document_prefix + document.id
            source, known = first.setdefault(document.text, (number, name))
            if source < number:  # each text only from the first set that has it
                renamed[document.id] = known
                documents -= 1
            else:
                renamed[document.id] = name
                corpus.append(replace(document, id=name, where=document.where or place))
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
            queries.append(
                query._replace(
                    id=query_prefix + query.id,
                    source=own_name,
                    where=query.where or place,
                    task=options.get("instruction", [""])[0] or query.task,
                    split=split or query.split,
                )
            )
    estimate = None
    if any(data.estimate is not None for _, data, *_ in parts):
        estimate = documents
    united = RetrievalData(
        corpus,
        queries,
        +notes,
        share=rows / estimated_rows,
        estimate=estimate,
        unread=sorted(unread),
    )
    return check_data(united, ", ".join(part[0] for part in parts))


def _rename(query: Query, renamed: Mapping[str, str], prefix: str) -> Query:
    """Return the query with new document ids, and each positive once. prefix: of the ids of documents that were not
    read. Texts of data with negatives or scores differ, so that these stay as they are."""
    grades: dict[str, int] = {}
    for name, grade in zip(query.positives, query.grades, strict=True):
        grades.setdefault(renamed.get(name, prefix + name), grade)
    return query._replace(
        positives=tuple(grades),
        grades=tuple(grades.values()),
        negatives=tuple(renamed.get(name, prefix + name) for name in query.negatives),
    )
