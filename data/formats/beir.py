"""BEIR folders: `corpus.jsonl`, `queries.jsonl` and `qrels/{train,dev,test}.tsv` (or `.jsonl`).

Or the folders `corpus`, `queries` and `qrels` with Parquet files, as NanoBEIR has them on the hub."""

from __future__ import annotations

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
from ratchet.data.formats.text_files import BLANK, read_field, read_filled, read_json_objects, show
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.data.retrieval.checks import refuse_repeated
from ratchet.errors import DataError
from ratchet.files import iterate_lines

NAMES = ("train", "dev", "valid", "val", "validation", "test")
SPLITS = {**{name: split_names.SPLITS[name] for name in NAMES}, "all": None}
ID_COLUMNS = ("query-id", "corpus-id")
FIELDS = {
    "corpus": ("_id", "title", "text"),
    "queries": ("_id", "text", "group"),
    "qrels": (*ID_COLUMNS, "score"),
}
"""Part of a data set -> the fields that are read."""
MAX_GRADE = 10**9
SCORE = re.compile(r"(-?[0-9]{1,9})(\.0*)?")


def read(folder: Path, *, labelled: bool = True, sampled: bool = False) -> RetrievalData:
    """Read a folder; without `labelled`, only the queries. A document is its title and text. Grades above 0 are
    relevant. The group of a query is its field `group`, else its id. Raises DataError naming file and line. sampled:
    of a corpus of more than `ratchet.data.retrieval.LARGE` bytes read only the first documents.

    The name of a qrels file, without a suffix such as `-00000-of-00001`, is the split (dev is valid). The queries of
    all.tsv, of train.tsv alone, and of Parquet files with other names have no split."""
    unlabelled: list[Query] = []
    places: dict[str, str] = {}
    unread: set[str] = set()
    for where, row in _read_rows(folder, "queries", unread):
        name = _read_id(where, row, "_id")
        refuse_repeated(places, name, where, "query id")
        text = read_field(where, row, "text", str)
        group = read_name(where, row, ["group"], "group")
        unlabelled.append(Query(name, text, (), (), group=group or name, where=where))
    if not labelled:
        return RetrievalData([], unlabelled)
    corpus, estimate = _read_corpus(folder, unread, sampled)
    known = {query.id: query for query in unlabelled}
    documents = None
    empty = 0
    if estimate is None:
        documents = {document.id for document in corpus}
        empty = sum(not document.text for document in corpus)
    files = _find_qrels(folder / "qrels")
    queries: list[Query] = []
    ungraded = 0
    absent = Counter[str]()
    labelled_ids = set[str]()
    for stem, paths in files.items():
        if [*files] == ["train"]:
            split = None
        else:
            split = SPLITS[stem]
        for name, (where, grades) in _read_qrels(paths, known, documents, absent, unread).items():
            labelled_ids.add(name)
            relevant = {}
            for document, grade in grades.items():
                if grade > 0:
                    relevant[document] = grade
            if relevant:
                query = known[name]._replace(split=split, where=where)
                queries.append(
                    query._replace(positives=tuple(relevant), grades=tuple(relevant.values()))
                )
            else:
                ungraded += 1
    if not queries:
        raise DataError(
            f"{folder / 'qrels'}: no query has a document of the corpus with a score of 1 or more; expected some; check"
            " the second and third column"
        )
    notes = {"queries without a relevant document, left out": ungraded} | absent
    others = {
        "queries without a label, left out": len(known) - len(labelled_ids),
        "documents without text": empty,
    }
    notes |= {name: count for name, count in others.items() if count}
    return RetrievalData(corpus, queries, notes=notes, estimate=estimate, unread=sorted(unread))


def _read_id(where: str, row: dict[str, Any], name: str) -> str:
    """Read an id, which may be a whole number. Raises DataError if it is missing or blank."""
    value = row.get(name)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
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

    files = sorted((folder / "corpus").glob("[!.]*.parquet")) or [folder / "corpus.jsonl"]
    size = sum(path.stat().st_size for path in files if path.exists())
    if not sampled or size <= retrieval.LARGE:
        return list(read()), None
    first = list(islice(read(), retrieval.SAMPLE))
    return first, estimate_rows(files, first)


def is_folder(path: Path) -> bool:
    """Whether a path is a folder with data in this format, labelled or not."""
    return any(
        (path / f"{name}.jsonl").exists() or (path / name).is_dir()
        for name in ("corpus", "queries")
    )


def _read_rows(folder: Path, name: str, unread: set[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) of each row of the corpus or the queries. Fields with other content are added to `unread`."""
    tables = sorted((folder / name).glob("[!.]*.parquet"))
    lines = folder / f"{name}.jsonl"
    if tables and lines.exists():
        raise DataError(
            f"{lines}: {tables[0]} is there too; expected one of the two; move the other one away"
        )
    refuse_missing_shards(tables)
    for file in tables or [lines]:
        for where, row in read_table(file, list) if tables else read_json_objects(file):
            _find_unread(row, FIELDS[name], unread)
            yield where, row


def _find_unread(row: Mapping[str, Any], fields: Container[str], unread: set[str]) -> None:
    """Add the names of the other fields of a row to `unread`, unless they are empty, as `metadata` often is."""
    for name, value in row.items():
        if name not in fields and value not in (None, "", {}, []):
            unread.add(name)


def _find_qrels(folder: Path) -> dict[str, list[Path]]:
    """Return split -> its qrels files. Raises DataError for a name that is no split. Parquet files with
    other names are read as `all`, since each folder on the hub must have a split name."""
    kinds = []
    for suffix in ("parquet", "tsv", "jsonl"):
        kinds.append(sorted(folder.glob(f"[!.]*.{suffix}")))
    found_files = []
    for own in kinds:
        for file in own:
            found_files.append(file)
    if len({file.suffix for file in found_files}) > 1:
        raise DataError(
            f"{folder}: {found_files[0].name} and {found_files[-1].name} given; expected files of one kind; move the"
            " others away"
        )
    refuse_missing_shards(found_files)
    if not found_files:
        raise DataError(
            f"{folder}: no .tsv file in it; expected train.tsv, and dev.tsv and test.tsv if there are; add them"
        )
    found: dict[str, list[Path]] = {}
    for path in found_files:
        stem = path.stem
        if path.suffix != ".tsv" and stem not in SPLITS:
            stem = find_word(path) or "all"
        found.setdefault(stem, []).append(path)
    for stem, (path, *_) in found.items():
        if stem not in SPLITS or (stem == "all" and len(found) > 1):
            raise DataError(
                f"{path}: split '{path.stem}' given; expected train, dev or test, or all.tsv alone; rename the file"
            )
    for split in ("train", "valid", "test"):
        same = [stem for stem in found if SPLITS[stem] == split]
        if len(same) > 1:
            raise DataError(
                f"{folder}: {' and '.join(same)} given; expected one of them; put them together"
            )
    return found


def _read_qrels(
    paths: Sequence[Path],
    known: Container[str],
    documents: Container[str] | None,
    absent: Counter[str],
    unread: set[str],
) -> dict[str, tuple[str, dict[str, int]]]:
    """Return query -> (`file:line` of its first row, document -> grade). documents: known ids; None: not checked. Rows
    of other documents, as published sets have them, are left out and counted in `absent`."""
    found: dict[str, tuple[str, dict[str, int]]] = {}
    lines: dict[tuple[str, str], str] = {}
    for where, row, grade in chain.from_iterable(_read_labels(path, unread) for path in paths):
        query, document = (_read_id(where, row, name) for name in ID_COLUMNS)
        if query not in known:
            raise DataError(
                f"{where}: query {show(query)} is not in queries.jsonl; add it or remove the line"
            )
        _, grades = found.setdefault(query, (where, {}))
        if documents is not None and document not in documents:
            absent["labels of documents that are not in the corpus, left out"] += 1
            continue
        first = lines.setdefault((query, document), where)
        if grades.setdefault(document, grade) != grade:
            raise DataError(
                f"{where}: query {show(query)} and document {show(document)} have score {grade}, and"
                f" {grades[document]} at {first}; expected one score; remove one"
            )
    if not found:
        raise DataError(
            f"{paths[0]}: no rows below the header; expected at least one; add them or remove the file"
        )
    return found


def _read_labels(path: Path, unread: set[str]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield (place, row with ID_COLUMNS, grade) of each row. In tables of two columns without scores, all are 1."""
    if path.suffix != ".tsv":
        is_scored = None
        for where, row in (
            read_table(path, list) if path.suffix == ".parquet" else read_json_objects(path)
        ):
            _find_unread(row, FIELDS["qrels"], unread)
            if is_scored is None:
                is_scored = "score" in row
            if "score" not in row and (is_scored or len(row) > len(ID_COLUMNS)):
                raise DataError(
                    f"{where}: no field 'score'; found {show(', '.join(row))}; expected one; rename it"
                )
            yield where, row, _read_grade(where, row.get("score", 1))
        return
    for number, line in iterate_lines(path):
        # Not str.strip(): Python counts control characters as white space.
        where = f"{path}:{number}"
        fields = line.rstrip(BLANK).split("\t")
        is_header = number == 1 and len(fields) == 3 and not re.search(r"\d", fields[2])
        if is_header and (
            "query" in fields[1].lower() or re.search("corpus|doc", fields[0].lower())
        ):
            raise DataError(
                f"{where}: {show(line.rstrip())} given; expected query-id, corpus-id and score in"
                " this order; reorder them"
            )
        if is_header or not line.strip(BLANK):
            continue
        if len(fields) == 3:
            score = SCORE.fullmatch(fields[2].strip(" "))
        else:
            score = None
        if score is None:
            raise DataError(
                f"{where}: {show(line.rstrip())} given; expected query-id, corpus-id and an integer score, separated by"
                " tabs; correct the line"
            )
        yield where, dict(zip(ID_COLUMNS, fields, strict=False)), int(score[1])


def _read_grade(where: str, value: Any) -> int:
    """Return a score, which may be a float without a fraction. Raises DataError for other values."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) < MAX_GRADE or value != int(value):
        raise DataError(
            f"{where}: score {show(value)} given; expected a whole number; correct the row"
        )
    return int(value)
