"""BEIR folders: `corpus.jsonl`, `queries.jsonl` and `qrels/{train,dev,test}.tsv` (or `.jsonl`).

Or the folders `corpus`, `queries` and `qrels` with Parquet files, as NanoBEIR has them on the hub; or MS MARCO's files
`collection.tsv`, `queries.train.tsv` and `qrels.train.tsv`, without headers. Text files may be compressed (`.gz`)."""

import math
import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ratchet.data import retrieval
from ratchet.data.formats import split_names
from ratchet.data.formats.pairs import read_name
from ratchet.data.formats.split_names import find_word, refuse_missing_shards
from ratchet.data.formats.table_files import estimate_rows, read_table
from ratchet.data.formats.text_files import (
    BLANK,
    Rows,
    get_suffix,
    read_field,
    read_filled,
    read_json_objects,
    show,
)
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.data.retrieval.checks import refuse_repeated
from ratchet.errors import DataError
from ratchet.files import iterate_lines

SPLITS = {**split_names.SPLITS, "all": None}
"""Name of a qrels file -> split."""
FIELDS = {
    "corpus": ("_id", "title", "text"),
    "queries": ("_id", "text", "group"),
    "qrels": ("query-id", "corpus-id", "score"),
}
"""Part of a data set -> the fields that are read."""
FILES = {
    "corpus": ("corpus.jsonl", "corpus.jsonl.gz", "collection.tsv", "collection.tsv.gz"),
    "queries": ("queries.jsonl", "queries.jsonl.gz", "queries*.tsv", "queries*.tsv.gz"),
}
"""Part of a data set -> its text files, of which the first that exist are read."""
HEADERS = (["text"], ["passage"], ["body"], ["query"])
"""Last field of the header that some of MS MARCO's kin have."""
MAX_GRADE = 10**9
ABSENT = "labels of documents that are not in the corpus, left out"


def read(folder: Path, *, labelled: bool = True, sampled: bool = False) -> RetrievalData:
    """Read a folder; without `labelled`, only the queries. A document is its title and text. Grades above 0 are
    relevant. The group of a query is its field `group`, else its id. Raises DataError naming file and line. sampled:
    of a corpus of more than `ratchet.data.retrieval.LARGE` bytes read only the first documents.

    The name of a qrels file, without a suffix such as `-00000-of-00001`, is the split (dev is valid). The queries of
    all.tsv, of train.tsv alone, and of Parquet files with other names have no split."""
    known: dict[str, Query] = {}
    places: dict[str, str] = {}
    unread: set[str] = set()
    for where, row in _read_rows(folder, "queries", unread):
        name = _read_id(where, row, "_id")
        text = read_field(where, row, "text", str)
        if name in known and known[name].text == text:  # a small split is a part of another one
            continue
        refuse_repeated(places, name, where, "query id")
        group = read_name(where, row, ["group"], "group")
        known[name] = Query(name, text, (), (), group=group or name, where=where)
    if not labelled:
        return RetrievalData([], list(known.values()))
    corpus, estimate = _read_corpus(folder, unread, sampled)
    notes: Counter[str] = Counter()
    documents = None
    if estimate is None:
        documents = {document.id for document in corpus}
        if get_suffix(_list_files(folder, "corpus")[0]) == ".tsv":
            notes["rows read as MS MARCO's documents"] = len(corpus)
        notes["documents without text"] = sum(not document.text for document in corpus)
    files = _find_qrels(folder)
    queries = []
    labelled_ids = set()
    for name, paths in files.items():
        split = SPLITS[name]
        if list(files) == ["train"]:
            split = None
        for query, (where, grades) in _read_qrels(paths, known, documents, notes, unread).items():
            labelled_ids.add(query)
            relevant = {document: grade for document, grade in grades.items() if grade > 0}
            if not relevant:
                notes["queries without a relevant document, left out"] += 1
                continue
            queries.append(
                known[query]._replace(
                    split=split,
                    where=where,
                    positives=tuple(relevant),
                    grades=tuple(relevant.values()),
                )
            )
    if not queries:
        raise DataError(
            f"{folder}: no query has a document of the corpus with a score of 1 or more in qrels; expected some; check"
            " the second and third column"
        )
    notes["queries without a label, left out"] = len(known) - len(labelled_ids)
    return RetrievalData(corpus, queries, +notes, estimate=estimate, unread=sorted(unread))


def _read_id(where: str, row: dict[str, Any], name: str) -> str:
    """Read an id, which may be a whole number. Raises DataError if it is missing or blank."""
    if type(row.get(name)) is int:
        return str(row[name])
    return read_filled(where, row, name)


def _read_corpus(
    folder: Path, unread: set[str], sampled: bool
) -> tuple[list[Document], int | None]:
    """Return the documents, and None; or of large files, if `sampled`, the first ones and their estimated number."""

    def read() -> Iterator[Document]:
        for where, row in _read_rows(folder, "corpus", unread):
            title = read_field(where, row, "title", str, None) or ""
            text = f"{title}\n{read_field(where, row, 'text', str)}".strip()
            yield Document(_read_id(where, row, "_id"), text, where)

    files = _list_files(folder, "corpus")
    size = sum(path.stat().st_size for path in files if path.exists())
    if not sampled or size <= retrieval.LARGE:
        return list(read()), None
    first = list(islice(read(), retrieval.SAMPLE))
    return first, estimate_rows(files, first)


def is_folder(path: Path) -> bool:
    """Whether a path is a folder with data in this format, labelled or not."""
    parts = ["corpus", "queries"]
    for names in FILES.values():
        parts += names
    return any(next(path.glob(name), None) for name in parts)


def _list_files(folder: Path, name: str) -> list[Path]:
    """List the files of the corpus or the queries: Parquet files of a folder, or else text files."""
    tables = sorted((folder / name).glob("[!.]*.parquet"))
    refuse_missing_shards(tables)
    if tables:
        return tables
    for pattern in FILES[name]:
        files = sorted(folder.glob(pattern))
        if files:
            return files
    return [folder / f"{name}.jsonl"]


def _read_rows(folder: Path, name: str, unread: set[str]) -> Rows:
    """Yield (place, row) of each row of the corpus or the queries. Fields with other content are added to `unread`."""
    for file in _list_files(folder, name):
        for where, row in _read_file(file):
            _find_unread(row, FIELDS[name], unread)
            yield where, row


def _read_file(file: Path) -> Rows:
    """Yield (place, row) of a table, of JSON Lines, or of MS MARCO's lines with an id and a text."""
    suffix = get_suffix(file)
    if suffix == ".parquet":
        yield from read_table(file)
    elif suffix != ".tsv":
        yield from read_json_objects(file)
    else:
        for number, line in iterate_lines(file):
            name, *texts = line.rstrip("\r\n").split("\t")
            if number == 1 and texts[-1:] in HEADERS:
                continue
            if len(texts) == 3:  # a document: address, title, text
                texts = texts[1:]
            yield f"{file}:{number}", {"_id": name, "text": "\n".join(texts).strip()}


def _find_unread(row: Mapping[str, Any], fields: Container[str], unread: set[str]) -> None:
    """Add the names of the other fields of a row to `unread`, unless they are empty, as `metadata` often is."""
    for name, value in row.items():
        if name not in fields and value not in (None, "", {}, []):
            unread.add(name)


def _find_qrels(folder: Path) -> dict[str, list[Path]]:
    """Return name of a split (see SPLITS) -> its qrels files. Raises DataError for a name that is no split. Other files
    than .tsv may have any name and are then read as `all`, since each folder on the hub must have a split name."""
    found: dict[str, list[Path]] = {}
    own = folder / "qrels"
    paths = sorted(own.glob("[!.]*"))
    if not own.exists():
        paths = sorted(folder.glob("qrels*"))
    for path in paths:
        name = path.name.removesuffix(".gz").removesuffix(".tsv")
        suffix = get_suffix(path)
        if suffix in (".parquet", ".jsonl") or path.parent == folder:
            name = find_word(path) or "all"
        elif suffix != ".tsv":
            continue
        if name not in SPLITS:
            raise DataError(
                f"{path}: split '{name}' given; expected train, dev or test, or all.tsv alone; rename the file"
            )
        found.setdefault(name, []).append(path)
    for paths in found.values():
        refuse_missing_shards(paths)
    if not found:
        raise DataError(
            f"{own}: no .tsv file in it; expected train.tsv, and dev.tsv and test.tsv if there are; add them"
        )
    return found


def _read_qrels(
    paths: Sequence[Path],
    known: Container[str],
    documents: Container[str] | None,
    notes: Counter[str],
    unread: set[str],
) -> dict[str, tuple[str, dict[str, int]]]:
    """Return query -> (`file:line` of its first row, document -> grade). documents: known ids; None: not checked. Rows
    of other documents, as published sets have them, are left out and counted in `notes`."""
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for where, row in chain.from_iterable(_read_labels(path, unread) for path in paths):
        query = _read_id(where, row, "query-id")
        document = _read_id(where, row, "corpus-id")
        grade = _read_grade(where, row)
        if query not in known:
            raise DataError(
                f"{where}: query {show(query)} is not in queries.jsonl; add it or remove the line"
            )
        _, grades = found.setdefault(query, (where, {}))
        if documents is not None and document not in documents:
            notes[ABSENT] += 1
        elif grades.setdefault(document, grade) != grade:
            raise DataError(
                f"{where}: query {show(query)} and document {show(document)} have score {grade}, and"
                f" {grades[document]} in a row above; expected one score; remove one"
            )
    return found


def _read_labels(path: Path, unread: set[str]) -> Rows:
    """Yield (place, row) of each row with the fields of qrels."""
    if get_suffix(path) != ".tsv":
        for where, row in _read_file(path):
            _find_unread(row, FIELDS["qrels"], unread)
            yield where, row
        return
    for number, line in iterate_lines(path):
        # Not str.strip(): Python counts control characters as white space.
        fields = line.rstrip(BLANK).split("\t")
        is_header = number == 1 and not re.search(r"\d", fields[-1])
        if is_header or not line.strip(BLANK):
            continue
        where = f"{path}:{number}"
        if len(fields) == 4:  # the second of TREC's four is always 0
            del fields[1]
        if len(fields) != 3:
            raise DataError(
                f"{where}: {show(line.rstrip())} given; expected query-id, corpus-id and an integer score, separated by"
                " tabs; correct the line"
            )
        yield where, dict(zip(FIELDS["qrels"], fields, strict=True))


def _read_grade(where: str, row: Mapping[str, Any]) -> int:
    """Read the score, a whole number in any form. In tables of two columns without scores, all are 1. Raises DataError
    for other values."""
    value: Any = row.get("score")
    if "score" not in row and len(row) == 2:
        value = 1
    try:
        grade = float(value)
    except (TypeError, ValueError, OverflowError):
        grade = math.nan
    if not abs(grade) < MAX_GRADE or grade != int(grade):
        raise DataError(
            f"{where}: score {show(value)} given; expected a whole number; correct the row"
        )
    return int(grade)
