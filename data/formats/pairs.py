"""Pairs and triplets: JSON Lines, CSV, and Parquet or Arrow files with a query and its positives in each row.

FlagEmbedding's training files are among them: `query`, `pos`, `neg`, and optionally `pos_scores`, `neg_scores`,
`prompt`, `reranker_prompt`, `type`, and files of further texts (`read_pools`)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ratchet.data import retrieval
from ratchet.data.formats.columns import (
    COLUMNS,
    Options,
    describe_columns,
    find_columns,
    read_label,
)
from ratchet.data.formats.signatures import RETRIEVAL, convert
from ratchet.data.formats.split_names import SPLITS, find_splits
from ratchet.data.formats.table_files import estimate_rows, list_tables, read_rows
from ratchet.data.formats.text_files import (
    fill_template,
    get_suffix,
    read_field,
    read_filled,
    read_json_objects,
    refuse_list,
    show,
)
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.errors import DataError

MAX_SCORE = 3e38
"""Bound on the absolute value of scores, which are stored as float32."""
SAID = ("rows read", "queries with negatives")
"""Beginnings of the notes that the plan shows."""
SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".xlsx", ".parquet", ".arrow")


def read(
    path: Path, options: Options, *, labelled: bool = True, sampled: bool = False
) -> RetrievalData:
    """Read a file, or a folder of Parquet or Arrow files. Raises DataError naming file and line (or row).

    Rows with the same query, instructions and id, if there are ids, are one query with several positives. Equal texts
    are one document. Ids are `d0`, ... and, for rows without one, `q0`, ..., in the order of appearance. Without
    `labelled` each row is a query, and documents are not read. sampled: of more than `ratchet.data.retrieval.LARGE`
    bytes read only the first rows. Rows of the files of several splits, and of a column `split`, are in these splits.
    Scores become the `teacher` of the queries. Queries about the same question (`Question: ...` up to `Hint:`) form a
    group, if the rows name none."""
    unread: set[str] = set()
    notes: Counter[str] = Counter()
    files = list_tables(path, options) or [path]
    rows: Iterator[Query] = _read_rows(path, options, labelled, unread, notes)
    share = 1.0
    if (
        sampled
        and get_suffix(path) not in (".json", ".xlsx")
        and sum(file.stat().st_size for file in files) > retrieval.LARGE
    ):
        first = list(islice(rows, retrieval.SAMPLE))
        rows = iter(first)
        share = len(first) / estimate_rows(files, first)
    ids: dict[str, str] = {}
    found: dict[Any, list[Query]] = {}
    count = 0
    for row in rows:
        key: Any = count
        if labelled:
            key = (row.id, row.text, row.task, row.prompt, row.split)
        positives = tuple(ids.setdefault(text, f"d{len(ids)}") for text in row.positives)
        negatives = tuple(ids.setdefault(text, f"d{len(ids)}") for text in row.negatives)
        found.setdefault(key, []).append(row._replace(positives=positives, negatives=negatives))
        count += 1
    corpus = [Document(name, text) for text, name in ids.items()]
    queries: list[Query] = []
    for own in found.values():
        queries.append(_merge_rows(own, f"q{len(queries)}"))
    notes["rows that repeat a query, put together"] = count - len(queries)
    if labelled:
        positive = [query for query in queries if query.positives]
        if queries and not positive:
            raise DataError(
                f"{path}: no row is a pair by its label; expected some; check the column, or add ?ignore=NAME behind"
                " the path if it means something else"
            )
        if len(positive) < len(queries):
            notes["queries with negatives alone, left out"] = len(queries) - len(positive)
        queries = positive
    return RetrievalData(
        corpus,
        queries,
        dict(notes),
        numbered=not any(own[0].id for own in found.values()),
        share=share,
        estimate=round(len(corpus) / share) if share < 1 else None,
        unread=sorted(unread),
    )


def read_pools(paths: Iterable[Path], known: Iterable[str]) -> list[Document]:
    """Read files of objects with `text`, and return those whose text is not known yet, each text once."""
    texts = set(known)
    corpus: list[Document] = []
    for path in paths:
        for where, line in read_json_objects(path):
            text = read_filled(where, line, "text")
            if text not in texts:
                texts.add(text)
                corpus.append(Document(f"pool/{len(corpus)}", text, where))
    return corpus


def _merge_rows(rows: Sequence[Query], name: str) -> Query:
    """Return the query of its rows, with the positives of all rows, and the negatives of all rows that are no
    positives, each with its first score: otherwise a positive of one row would be mined as a negative of another."""
    positives: dict[str, float] = {}
    negatives: dict[str, float] = {}
    for row in rows:
        right, wrong = row.teacher or ([0.0] * len(row.positives), [0.0] * len(row.negatives))
        for document, score in zip(row.positives, right, strict=True):
            positives.setdefault(document, score)
        for document, score in zip(row.negatives, wrong, strict=True):
            negatives.setdefault(document, score)
    for document in positives:
        negatives.pop(document, None)
    teacher = None
    if all(row.teacher for row in rows):
        teacher = tuple(positives.values()), tuple(negatives.values())
    first = rows[0]
    group = ""
    place = ""
    for row in rows:
        if group and row.group not in ("", group):
            raise DataError(
                f"{row.where}: group {show(row.group)} given for a query that has group {show(group)} at {place};"
                " expected one group per query; correct it"
            )
        if row.group:
            group = row.group
            place = row.where
    return first._replace(
        id=first.id or name,
        positives=tuple(positives),
        grades=(1,) * len(positives),
        negatives=tuple(negatives),
        group=group or first.text.split("\nHint:")[0],
        teacher=teacher,
    )


def _read_rows(
    path: Path, options: Options, labelled: bool, unread: set[str], notes: Counter[str]
) -> Iterator[Query]:
    """Yield a query per row, with texts in the place of the ids of documents. notes: counts the rows by how they are
    read."""
    seen = {}
    described = {}
    first_with: dict[bool, str] = {}
    """Whether a row has scores -> the place of the first such row."""
    template = options.get("template")
    has_cells = get_suffix(path) in (".csv", ".tsv", ".xlsx")
    for where, row, kind, split in read_objects(path, options, labelled):
        names = tuple(row)
        if names not in seen:
            seen[names] = find_columns(where, row, options, labelled)
            unread.update(seen[names]["unread"])
            described[names] = describe_columns(seen[names])
        columns = seen[names]
        if kind:
            notes[f"rows read as {kind}"] += 1
        elif described[names]:
            notes[f"rows read with {described[names]}"] += 1
        for name in columns["split"]:
            given = str(row[name] or "").lower()
            if given and given not in SPLITS:
                raise DataError(
                    f"{where}: split {show(row[name])} given; expected one of {', '.join(SPLITS)}; correct it, or add"
                    " ?ignore=split behind the path if the column means something else"
                )
            split = SPLITS.get(given, split)
        if template:
            text = fill_template(where, template[0], row)
        else:
            text = read_field(where, row, columns["query"][0], str)
        positives = _read_texts(where, row, columns["positive"], "positive")
        negatives = _read_texts(where, row, columns["negative"], "negative")
        labels = [read_label(where, name, row[name], options) for name in columns["label"]]
        if None in labels:
            notes["rows read as neutral by their label, left out"] += 1
            continue
        if False in labels:
            notes["rows read as negatives by their label"] += 1
            negatives += positives
            positives = []
        both = set(positives).intersection(negatives)
        if both:
            raise DataError(
                f"{where}: query {show(text)} has {show(min(both))} as a positive and as a negative; expected one of"
                " the two; remove it from the negatives"
            )
        if has_cells:
            for text_read in (*positives, *negatives):
                refuse_list(where, text_read)
        teacher = None
        if any(row[name] is not None for name in columns["scores"]):
            teacher = (
                _read_scores(where, row, "pos_scores", positives),
                _read_scores(where, row, "neg_scores", negatives),
            )
        first_with.setdefault(teacher is not None, where)
        if len(first_with) == 2:
            raise DataError(
                f"{first_with[False]}: no pos_scores and neg_scores, but {first_with[True]} has them; expected them on"
                " all lines or on none; score the rest, or remove them"
            )
        yield Query(
            read_name(where, row, columns["id"], "id"),
            text,
            tuple(positives),
            (),
            tuple(negatives),
            read_name(where, row, columns["group"], "group"),
            split or None,
            where,
            teacher,
            read_name(where, row, columns["task"], "task"),
            read_name(where, row, columns["prompt"], "prompt"),
        )


def read_objects(
    path: Path, options: Options, labelled: bool
) -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """Yield (place, row, what it is read as, split of its file) of each row."""
    known = RETRIEVAL
    if COLUMNS.keys() & options.keys():  # options name the columns as they are
        known = ()
    files = list_tables(path, options)
    splits: dict[Path, str] = {}
    if labelled and path.is_dir() and "split" not in options:
        splits = find_splits(files, path)
    for file in files or [path]:
        for where, value in read_rows(file):
            rows, kind = convert(where, value, known)
            for row in rows:
                yield where, row, kind, splits.get(file, "")


def _read_texts(where: str, row: Mapping[str, Any], columns: Sequence[str], role: str) -> list[str]:
    found = []
    for name in columns:
        value = row[name]
        if role == "negative" and value in (None, "", []):
            continue
        for text in value if isinstance(value, list) and value else [value]:
            if not isinstance(text, str) or not text.strip():
                raise DataError(
                    f"{where}: {role} {show(text)} given; expected a text that is not empty, or a list of texts;"
                    " correct or remove the row"
                )
            found.append(text)
    return found


def _read_scores(
    where: str, row: dict[str, Any], name: str, texts: Sequence[str]
) -> tuple[float, ...]:
    """Read a field with one finite number per text."""
    values = read_field(where, row, name, list, None) or []
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= MAX_SCORE:
            raise DataError(
                f"{where}: field '{name}' holds {show(value)}; expected finite numbers; score the line again"
            )
    if len(values) != len(texts):
        raise DataError(
            f"{where}: field '{name}' has {len(values)} scores for {len(texts)} texts; expected one each; score the"
            " line again"
        )
    return tuple(values)


def read_name(where: str, row: Mapping[str, Any], columns: Sequence[str], role: str) -> str:
    """Read the first of `columns` as a text; empty if missing or blank. Raises DataError unless text or integer."""
    value = row.get(columns[0]) if columns else None
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise DataError(
            f"{where}: {role} {show(value)} given; expected a text or a whole number; correct the row"
        )
    if value is None or not str(value).strip():
        return ""
    return str(value)
