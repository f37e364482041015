"""Pairs and triplets: JSON Lines, CSV, and Parquet or Arrow files with a query and its positives in each row.

FlagEmbedding's training files are among them: `query`, `pos`, `neg`, and optionally `pos_scores`, `neg_scores`,
`prompt`, `reranker_prompt`, `type`, and files of further texts (`read_pools`)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from ratchet.data import retrieval
from ratchet.data.formats.signatures import RETRIEVAL, convert
from ratchet.data.formats.split_names import SPLITS, find_splits
from ratchet.data.formats.table_files import estimate_rows, list_tables, read_table
from ratchet.data.formats.text_files import (
    BLANK,
    FIELD,
    fill_template,
    read_csv,
    read_field,
    read_filled,
    read_json_objects,
    read_json_values,
    refuse_list,
    show,
)
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.errors import DataError
from ratchet.files import iterate_lines

COLUMNS: Mapping[str, Sequence[str]] = {
    "query": ("query", "anchor", "question", "text"),
    "positive": ("positive", "pos", "answer", "document", "positives"),
    "negative": (
        "negative",
        "neg",
        "negatives",
        "negs",
        "hard_negative",
        "hard_negatives",
        "neg_docs",
    ),
    "task": ("task", "prompt"),
    "prompt": ("reranker_prompt",),
    "group": ("group",),
    "id": ("id", "_id"),
}
"""Option -> default names of its column, of which the first that exists is read; of `negative` all, also `negative_1`,
... A column that an option names has no other role."""
LABELS = ("label", "labels", "relevance", "relevant", "is_relevant", "is_duplicate")
"""Columns that other libraries read as `is a pair`: rows with another value than 1 are refused."""
RATINGS = ("score", "scores", "similarity", "similarity_score", "rating", "ratings", "weight")
"""Columns that other libraries read as the rating or the weight of a pair: they are refused."""
NEGATIVE = re.compile(r"(hard_)?neg(ative)?_?\d+")
"""Other names of columns of negatives."""
SCORES = ("pos_scores", "neg_scores")
"""Columns of a teacher's scores, one for each positive and for each negative."""
MAX_SCORE = 3e38
"""Bound on the absolute value of scores, which are stored as float32."""
OTHERS = ("ignore", "instruction", "name", "split", "template")
"""Options of any format. ignore: columns that are not read, separated by commas; instruction: task of all queries;
name: prefix of ids; split: which files of a folder, or rows of the column `split`; template: query text from several
columns."""
WRITTEN = "rows as "
"""Beginning of the notes on rows that another library wrote."""
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")

Options = Mapping[str, Sequence[str]]


def parse_options(text: str, where: str) -> Options:
    """Parse the query string behind a path, such as `query=title&positive=body`. Raises DataError, beginning with
    `where`, for unknown options, those without a value or with several, and two that exclude each other."""
    given = parse_qs(text, keep_blank_values=True)
    if "text" in given:  # what documents have in the place of a query
        given["query"] = [*given.get("query", []), *given.pop("text")]
    for key, values in given.items():
        several = len(values) > 1 and key != "negative"
        if key not in (*COLUMNS, *OTHERS) or "" in values or several:
            raise DataError(
                f"{where}: '{key}={'&'.join(values)}' given behind the path; expected some of"
                f" {', '.join((*COLUMNS, *OTHERS))}, each with one value; correct it"
            )
    if "query" in given and "template" in given:
        raise DataError(
            f"{where}: query and template given behind the path; expected one of the two; leave one out"
        )
    return given


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
    writers: Counter[str] = Counter()
    files = list_tables(path, options) or [path]
    rows: Iterator[Query] = _read_rows(path, options, labelled, unread, writers)
    share = 1.0
    if (
        sampled
        and path.suffix != ".json"
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
    notes = {"rows that repeat a query, put together": count - len(queries)}
    for writer in filter(None, writers):
        notes[f"{WRITTEN}{writer} writes them"] = writers[writer]
    return RetrievalData(
        corpus,
        queries,
        notes,
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
    path: Path, options: Options, labelled: bool, unread: set[str], writers: Counter[str]
) -> Iterator[Query]:
    """Yield a query per row, with texts in the place of the ids of documents."""
    seen = {}
    first_with: dict[bool, str] = {}
    """Whether a row has scores -> the place of the first such row."""
    template = options.get("template")
    for where, row, split in read_objects(path, options, labelled, writers):
        names = tuple(row)
        if names not in seen:
            seen[names] = _find_columns(where, names, options, labelled)
            unread.update(seen[names]["unread"])
        columns = seen[names]
        for name in columns["split"]:
            given = str(row[name] or "").lower()
            if given and given not in SPLITS:
                raise DataError(
                    f"{where}: split {show(row[name])} given; expected one of {', '.join(SPLITS)}; correct it, or add"
                    " ?ignore=split behind the path if the column means something else"
                )
            split = SPLITS.get(given, split)
        for name in columns["label"]:
            if row[name] not in (1, "1", "1.0", "true", "True"):
                raise DataError(
                    f"{where}: {name} {show(row[name])} given; expected 1, since each row is a query with its positive;"
                    f" put the text of other rows into a column `negative` and remove them, or add ?ignore={name}"
                    " behind the path if the column means something else"
                )
        if template:
            text = fill_template(where, template[0], row)
        else:
            text = read_field(where, row, columns["query"][0], str)
        positives = _read_texts(where, row, columns["positive"], "positive")
        negatives = _read_texts(where, row, columns["negative"], "negative")
        both = set(positives).intersection(negatives)
        if both:
            raise DataError(
                f"{where}: query {show(text)} has {show(min(both))} as a positive and as a negative; expected one of"
                " the two; remove it from the negatives"
            )
        if path.suffix == ".csv":
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
    path: Path, options: Options, labelled: bool, writers: Counter[str]
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield (place, row, split of its file) of each row. writers: counts the rows that another library wrote."""
    if path.suffix == ".txt":
        for number, line in iterate_lines(path):
            if line.strip(BLANK):
                yield f"{path}:{number}", {"query": line.strip(BLANK)}, ""
    elif path.suffix == ".csv":
        for where, row in read_csv(path, ()):
            yield where, row, ""
    elif path.suffix in (".jsonl", ".json"):
        # Options name the columns as they are.
        known = () if COLUMNS.keys() & options.keys() else RETRIEVAL
        for where, value in read_json_values(path):
            row, writer = convert(where, value, known)
            writers[writer] += 1
            yield where, row, ""
    tables = list_tables(path, options)
    splits: dict[Path, str] = {}
    if labelled and path.is_dir() and "split" not in options:
        splits = find_splits(tables, path)
    for file in tables:
        for where, row in read_table(file):
            yield where, row, splits.get(file, "")


def _find_columns(
    where: str, names: Sequence[str], options: Options, labelled: bool
) -> dict[str, Sequence[str]]:
    """Return the columns of each role among `names`, also of the roles `split`, `label`, `scores` and `unread`. Raises
    DataError for missing columns, and for ratings of pairs."""
    taken = set(options.get("ignore", ("",))[0].split(","))
    for role in COLUMNS:
        taken.update(options.get(role, ()))
    free = [name for name in names if name not in taken]
    found: dict[str, Sequence[str]] = {}
    for role, defaults in COLUMNS.items():
        given = options.get(role, ())
        if role == "query" and "template" in options:
            given = FIELD.findall(options["template"][0])
        if not labelled and role in ("positive", "negative"):
            own = []
        elif given:
            own = [name for name in given if name in names]
        elif role == "negative":
            own = [name for name in free if name in defaults or NEGATIVE.fullmatch(name)]
        else:
            own = [name for name in defaults if name in free][:1]
        needed = role == "query" or (role == "positive" and labelled)
        if len(own) < max(len(given), needed):
            raise DataError(
                f"{where}: no column for the {role}; found {show(', '.join(names))}; expected"
                f" {' or '.join(given or defaults)}; rename one, or name it behind the path as '?{role}=NAME'"
            )
        found[role] = own
    others: dict[str, list[str]] = {"split": [], "label": [], "scores": [], "unread": []}
    for name in free if labelled else ():
        folded = name.strip().lower()
        if any(name in own for own in found.values()) or folded == "type":  # of FlagEmbedding
            continue
        if folded in RATINGS:
            raise DataError(
                f"{where}: column {name} given; expected pairs without ratings, which are not read; leave it out, use"
                f" FlagEmbedding's pos_scores and neg_scores for a teacher's scores, or add ?ignore={name} behind the"
                " path"
            )
        if folded == "split" and "split" not in options:
            others["split"].append(name)
        elif folded in LABELS:
            others["label"].append(name)
        elif folded in SCORES:
            others["scores"].append(name)
        else:
            others["unread"].append(name)
    return found | others


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
