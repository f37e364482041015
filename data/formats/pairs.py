"""Pairs and triplets: JSON Lines, CSV, and Parquet or Arrow files with a query and its positives in each row.

FlagEmbedding's training files are among them: `query`, `pos`, `neg`, and optionally `pos_scores`, `neg_scores`,
`prompt`, `reranker_prompt`, `type`, and `candidate_pool.jsonl` (objects with `text`) beside the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from ratchet.data import retrieval
from ratchet.data.formats.split_names import SPLITS, find_splits, matches_split, read_split
from ratchet.data.formats.table_files import estimate_rows, list_tables, read_table
from ratchet.data.formats.text_files import (
    BLANK,
    FIELD,
    fill_template,
    read_csv,
    read_field,
    read_filled,
    read_json_objects,
    read_scores,
    show,
)
from ratchet.data.retrieval import RetrievalData
from ratchet.data.retrieval.rows import Row, number_rows
from ratchet.errors import DataError
from ratchet.files import iterate_lines

COLUMNS: Mapping[str, Sequence[str]] = {
    "query": ("query", "anchor", "question"),
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
LIST = re.compile(r"""\s*\[\s*(['"]).*\1\s*\]\s*""", re.DOTALL)
POOL = "candidate_pool.jsonl"
SCORES = ("pos_scores", "neg_scores")
"""Columns of a teacher's scores, one for each positive and for each negative."""
OTHERS = ("ignore", "instruction", "name", "split", "template")
"""Options of any format. ignore: columns that are not read, separated by commas; instruction: task of all queries;
name: prefix of ids; split: which files of a folder, or rows of the column `split`; template: query text from several
columns."""
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet", ".arrow")

Options = Mapping[str, Sequence[str]]


def parse_options(text: str, where: str) -> Options:
    """Parse the query string behind a path, such as `query=title&positive=body`. Raises DataError, beginning with
    `where`, for unknown options, and those without a value or with several."""
    given = parse_qs(text, keep_blank_values=True)
    for key, values in given.items() if given or not text else [(text, [""])]:
        wrong = (
            key not in (*COLUMNS, *OTHERS)
            or "" in values
            or (len(values) > 1 and key != "negative")
        )
        if wrong:
            raise DataError(
                f"{where}: '{key}={'&'.join(values)}' given behind the path; expected some of"
                f" {', '.join((*COLUMNS, *OTHERS))}, each with one value; correct it"
            )
    if {"query", "template"} <= given.keys():
        raise DataError(
            f"{where}: query and template given behind the path; expected one of the two; leave one out"
        )
    return given


def read(
    path: Path, options: Options, *, labelled: bool = True, sampled: bool = False
) -> RetrievalData:
    """Read a file, or a folder of Parquet or Arrow files. Raises DataError naming file and line (or row).

    Rows with the same query, instructions and id, if there are ids, are one query with several positives. Equal texts
    are one document. Without `labelled` each row is a query, and documents are not read. sampled: of more than
    `ratchet.data.retrieval.LARGE` bytes read only the first rows. Rows of the files of several splits, and of a column
    `split`, are in these splits. Scores become the `teacher` of the queries. Queries about the same question
    (`Question: ...` up to `Hint:`) form a group, if the rows name none."""
    unread: set[str] = set()
    files = list_tables(path, options) or [path]
    rows: Iterator[Row] = _read_rows(path, options, labelled, unread)
    share = 1.0
    if sampled and sum(file.stat().st_size for file in files) > retrieval.LARGE:
        first = list(islice(rows, retrieval.SAMPLE))
        rows = iter(first)
        share = len(first) / estimate_rows(files, first)
    others: list[str] = []
    pool = path.parent / POOL
    if labelled and path.suffix == ".jsonl" and pool.exists() and share == 1:
        for where, line in read_json_objects(pool):
            others.append(read_filled(where, line, "text"))
    return replace(number_rows(rows, others, share), unread=sorted(unread))


def _read_rows(path: Path, options: Options, labelled: bool, unread: set[str]) -> Iterator[Row]:
    seen: dict[tuple[str, ...], Options] = {}
    template = options.get("template")
    wanted = options.get("split", ("",))[0]
    files = list_tables(path, options) or [path]
    is_named = all(matches_split(file, path, wanted) for file in files)
    is_found = False
    scored: dict[bool, str] = {}  # whether a row has scores -> the first such row
    for number, (where, row, file_split) in enumerate(
        _read_objects(path, options, labelled, unread)
    ):
        names = tuple(row)
        if names not in seen:
            seen[names] = _find_columns(where, names, options, labelled, unread)
        columns = seen[names]
        split = _read_split_column(where, row, columns["split"]) or file_split
        if wanted and columns["split"] and split != read_split(wanted):
            continue
        if wanted and not columns["split"] and not is_named:
            raise DataError(
                f"{where}: ?split={wanted} given; found {show(', '.join(names))}; expected a column `split`; add one,"
                " or leave the option out"
            )
        is_found = True
        _check_labels(where, row, columns["label"])
        if template:
            text = fill_template(where, template[0], row)
        else:
            text = read_field(where, row, columns["query"][0], str)
        id, group, task, prompt = (
            read_name(where, row, columns[r], r) for r in ("id", "group", "task", "prompt")
        )
        positives, negatives = (
            list(_read_texts(where, row, columns[r], r)) for r in ("positive", "negative")
        )
        if path.suffix == ".csv":
            _refuse_lists(where, (*positives, *negatives))
        teacher = None
        if columns["scores"]:
            teacher = _read_teacher(where, row, positives, negatives)
        scored.setdefault(teacher is not None, where)
        if len(scored) == 2:
            raise DataError(
                f"{scored[False]}: no pos_scores and neg_scores, but {scored[True]} has them; expected them on all"
                " lines or on none; score the rest, or remove them"
            )
        both = set(positives) & set(negatives)
        if both and columns["positive"] == ["pos"]:
            raise DataError(
                f"{where}: query {show(text)} has {show(min(both))} as a positive and as a negative; expected one of"
                " the two; remove it from neg"
            )
        if wanted:
            assigned = None
        else:
            assigned = split or None
        key: Any = number
        if labelled:
            key = (id, text, task, prompt, assigned)
        group = group or text.split("\nHint:")[0]
        yield Row(
            key, text, positives, negatives, group, where, id, task, prompt, teacher, assigned
        )
    if wanted and not is_found:
        raise DataError(
            f"{path}: no row of the split '{wanted}'; expected some; correct ?split= behind the path"
        )


def _read_teacher(
    where: str, row: dict[str, Any], positives: Sequence[str], negatives: Sequence[str]
) -> tuple[Sequence[float], Sequence[float]] | None:
    """Return the scores of the positives and of the negatives; None without any. Raises DataError for one of the two
    without the other."""
    right, wrong = (
        read_scores(where, row, name, own)
        for name, own in zip(SCORES, (positives, negatives), strict=True)
    )
    if right is None and wrong is None:
        return None
    if right is None or (negatives and wrong is None):
        raise DataError(
            f"{where}: one of pos_scores and neg_scores given; expected both or none; score the line again"
        )
    return right, wrong or ()


def _read_split_column(where: str, row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Read the column `split`; empty without it. Raises DataError for a name that is no split."""
    if columns:
        value = row.get(columns[0])
    else:
        value = None
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or value.lower() not in SPLITS:
        raise DataError(
            f"{where}: split {show(value)} given; expected one of {', '.join(SPLITS)}; correct it, or add ?ignore=split"
            " behind the path if the column means something else"
        )
    return SPLITS[value.lower()]


def _check_labels(where: str, row: Mapping[str, Any], columns: Sequence[str]) -> None:
    """Raise DataError for a row that is labelled as no pair."""
    for name in columns:
        if row[name] not in (1, "1", "1.0", "true", "True"):
            raise DataError(
                f"{where}: {name} {show(row[name])} given; expected 1, since each row is a query with its positive; put"
                f" the text of other rows into a column `negative` and remove them, or add ?ignore={name} behind the"
                " path if the column means something else"
            )


def _read_objects(
    path: Path, options: Options, labelled: bool, unread: set[str]
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield (place, row, split of its file) of each row."""
    if path.suffix == ".txt":
        for number, line in iterate_lines(path):
            if text := line.strip(BLANK):
                yield f"{path}:{number}", {"query": text}, ""
    elif path.suffix == ".csv":
        for where, row in read_csv(path, ()):
            yield where, row, ""
    elif path.suffix in (".jsonl", ".json"):
        for where, row in read_json_objects(path):
            yield where, row, ""
    tables = list_tables(path, options)
    if labelled and "split" not in options:
        splits = find_splits(tables, path)
    else:
        splits = {}
    for file in tables:
        find = partial(_find_columns, str(file), options=options, labelled=labelled, unread=unread)
        rows = read_table(file, lambda names, find=find: chain(*find(names).values()))  # type: ignore[misc]
        for where, row in rows:
            yield where, row, splits.get(file, "")


def _find_columns(
    where: str, names: Sequence[str], options: Options, labelled: bool, unread: set[str]
) -> Options:
    """Return the columns of each role among `names`, also of the roles `split` and `label`. The others are added to
    `unread`. Raises DataError for missing columns, and for ratings of pairs."""
    ignored = options.get("ignore", ("",))[0].split(",")
    named = {name for role in COLUMNS for name in options.get(role, ())} | {*ignored}
    found: dict[str, Sequence[str]] = {}
    for role, defaults in COLUMNS.items():
        read = labelled or role not in ("positive", "negative")
        fields: list[str] = []
        if role == "query" and "template" in options:
            fields = FIELD.findall(options["template"][0])
        known = fields or options.get(role)
        if known:
            own = []
            for name in known:
                if name in names:
                    own.append(name)
        else:
            if role == "query" and not labelled:
                known = (*defaults, "text")
            else:
                known = defaults
            own = []
            for name in known:
                if name in names and name not in named:
                    own.append(name)
            if role != "negative":
                own = own[:1]
        if role == "negative":
            own += [name for name in names if NEGATIVE.fullmatch(name) and name not in named]
        is_given = bool(fields) or role in options
        if read and len(own) < (len(known) if is_given else role in ("query", "positive")):
            raise DataError(
                f"{where}: no column for the {role}; found {show(', '.join(names))}; expected {' or '.join(known)};"
                f" rename one, or name it behind the path as '?{role}=NAME'"
            )
        if read:
            found[role] = own
        else:
            found[role] = ()
    others = []
    for name in names:
        if name not in named and not any(name in own for own in found.values()):
            others.append(name)
    found["split"], found["label"], found["scores"] = [], [], []
    if labelled:
        found["split"], found["label"] = _find_marks(where, others)
        found["scores"] = [name for name in SCORES if name in others]
    if "split" in options:
        found["split"] = [name for name in others if fold(name) == "split"][:1]
    used = {name for own in found.values() for name in own}
    used |= {*ignored, "type"}  # of FlagEmbedding
    unread.update(name for name in names if name not in used and labelled)
    return found


def _find_marks(where: str, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return those of the columns that tell the split (at most one), and those that tell whether a row is a pair.
    Raises DataError for ratings of pairs."""
    for name in names:
        if fold(name) in RATINGS:
            raise DataError(
                f"{where}: column {name} given; expected pairs without ratings, which are not read; leave it out, use"
                f" FlagEmbedding's pos_scores and neg_scores for a teacher's scores, or add ?ignore={name} behind the"
                " path"
            )
    splits = [name for name in names if fold(name) == "split"]
    labels = [name for name in names if fold(name) in LABELS]
    return splits[:1], labels


def fold(name: str) -> str:
    """Return the name of a column in lower case, without spaces around it."""
    return name.strip().lower()


def _read_texts(
    where: str, row: Mapping[str, Any], columns: Sequence[str], role: str
) -> Iterator[str]:
    for value in (row.get(name) for name in columns):
        for text in value if isinstance(value, list) and value else [value]:
            if isinstance(text, str) and text.strip():
                yield text
            elif role == "positive" or value not in (None, "", []):
                raise DataError(
                    f"{where}: {role} {show(text)} given; expected a text that is not empty, or a list of texts;"
                    " correct or remove the row"
                )


def _refuse_lists(where: str, texts: Sequence[str]) -> None:
    """Raise DataError for a list that was written as a text, as pandas writes lists into CSV."""
    for text in texts:
        if LIST.fullmatch(text):
            raise DataError(
                f"{where}: {show(text)} given, a list as a text; expected a text in each field; write JSON Lines or"
                " Parquet, which have lists, or one column per text"
            )


def read_name(where: str, row: Mapping[str, Any], columns: Sequence[str], role: str) -> str:
    """Read the first of `columns` as a text; empty if missing or blank. Raises DataError unless text or integer."""
    if columns:
        value = row.get(columns[0])
    else:
        value = None
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise DataError(
            f"{where}: {role} {show(value)} given; expected a text or a whole number; correct the row"
        )
    if value is None or not str(value).strip():
        return ""
    return str(value)
