"""Detection of the format of a path, and loading of the data in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratchet.data.formats import beir, eedi, pairs
from ratchet.data.formats.table_files import list_tables
from ratchet.data.formats.text_files import read_csv
from ratchet.data.retrieval import Query, RetrievalData
from ratchet.data.retrieval.checks import check_data, check_queries
from ratchet.errors import DataError
from ratchet.files import open_regular

PACKED = {
    ".gz": "compressed by gzip; expected an unpacked file; unpack it with gunzip",
    ".zst": "compressed by Zstandard; expected an unpacked file; unpack it with unzstd",
    ".zip": "a zip archive; expected an unpacked file or folder; unpack it with unzip",
    ".tsv": "separated by tabs; expected commas, or JSON Lines; write the file again as .csv",
    ".xlsx": "a spreadsheet; expected CSV; save it as .csv",
}
"""Suffix -> what is wrong, and what to do."""


def load_retrieval(
    path: Path, options: str = "", least: int = 2, *, sampled: bool = False
) -> RetrievalData:
    """Load and check data of any known format. options: as after a path, such as `query=title&positive=body`. sampled:
    only the first rows of large files. Raises DataError naming file and line, also for fewer than `least` documents."""
    found = _read(path, pairs.parse_options(options, str(path)), labelled=True, sampled=sampled)
    return check_data(found, str(path), least)


def load_queries(path: Path, options: str = "") -> Sequence[Query]:
    """Load queries that need no labels: data of any known format, a folder or file with Eedi's `test.csv`, a BEIR
    folder without qrels, JSON Lines, CSV or Parquet with `query` or `text`, or a text file with a query per line.
    Labels are not read. options: as for `load_retrieval`. Raises DataError naming file and line."""
    given = pairs.parse_options(options, str(path))
    queries = _read(path, given, labelled=False).queries
    check_queries(queries, str(path))
    if "instruction" in given:
        queries = [query._replace(task=given["instruction"][0]) for query in queries]
    return queries


def _read(
    path: Path, options: pairs.Options, *, labelled: bool, sampled: bool = False
) -> RetrievalData:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected data; check the path")
    if not path.is_dir():
        open_regular(path).close()
    named = []
    for key in options:
        if key in (*pairs.COLUMNS, "template"):
            named.append(key)
    unknown = [*named, *(key for key in options if key in ("ignore", "split"))]
    files = []
    for name in ("test.csv", "train.csv")[labelled:]:
        if (path / name).exists():
            files.append(path / name)
    if not labelled and path.suffix == ".csv" and "QuestionText" in next(read_csv(path, ()))[1]:
        files = [path]
    if path.suffix in (".jsonl", ".json"):
        jsonl = [path]
    else:
        jsonl = sorted(path.glob("[!.]*.jsonl"))
    jsonl = [file for file in jsonl if file.name != pairs.POOL]
    csv = sorted(path.glob("[!.]*.csv"))
    if (
        files
        and labelled
        and not (path / eedi.MAPPING).exists()
        and "QuestionText" not in next(read_csv(files[0], ()))[1]
    ):
        files = []
    if files or (path / eedi.MAPPING).exists():
        if labelled:
            where = path
        else:
            where = (*files, path / "test.csv")[0]
        kind = "Eedi"
        data = eedi.read(where, labelled=labelled, template="".join(options.get("template", ())))
        unknown = [key for key in unknown if key != "template"]
    elif beir.is_folder(path):
        kind = "BEIR"
        data = beir.read(path, labelled=labelled, sampled=sampled)
    elif len(jsonl) + len(csv) > 1 or (path.is_dir() and (jsonl or csv) and list_tables(path, {})):
        names = ", ".join(file.name for file in (*jsonl, *csv, *list_tables(path, {}))[:4])
        raise DataError(
            f"{path}: several data files ({names}); expected one, or Parquet or Arrow files alone; give one of them as"
            " data, and others as valid and test"
        )
    elif len(jsonl) == 1:
        return pairs.read(jsonl[0], options, labelled=labelled, sampled=sampled)
    elif (
        path.suffix in pairs.SUFFIXES
        or list_tables(path, options)
        or (path.suffix == ".txt" and not labelled)
    ):
        return pairs.read(path, options, labelled=labelled, sampled=sampled)
    elif path.suffix in PACKED:
        raise DataError(f"{path}: {PACKED[path.suffix]}; see docs/data.md")
    else:
        raise DataError(
            f"{path}: no known format; expected a folder with train.csv and {eedi.MAPPING} (Eedi), one with"
            " corpus.jsonl, queries.jsonl and qrels/ (BEIR), a .jsonl file (FlagEmbedding), a .jsonl, .csv or .parquet"
            " file of pairs, or a folder of .parquet files; see docs/data.md"
        )
    if unknown:
        raise DataError(
            f"{path}: '?{unknown[0]}=' given; expected no columns for {kind}; leave it out"
        )
    return data
