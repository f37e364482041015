"""Detection of the format of a path, and loading of the data in it."""

from collections.abc import Sequence
from pathlib import Path

from ratchet.data.formats import beir, eedi, pairs
from ratchet.data.formats.columns import COLUMNS, Options, parse_options
from ratchet.data.formats.table_files import list_tables
from ratchet.data.formats.text_files import get_suffix
from ratchet.data.retrieval import POOL, Query, RetrievalData
from ratchet.data.retrieval.checks import check_data, check_queries
from ratchet.errors import DataError


def load_retrieval(
    path: Path, options: str = "", least: int = 2, *, sampled: bool = False
) -> RetrievalData:
    """Load and check data of any known format. options: as after a path, such as `query=title&positive=body`. sampled:
    only the first rows of large files. Raises DataError naming file and line, also for fewer than `least` documents."""
    found = _read(path, parse_options(options, str(path)), labelled=True, sampled=sampled)
    return check_data(found, str(path), least)


def load_queries(path: Path, options: str = "") -> Sequence[Query]:
    """Load queries that need no labels: data of any known format, a folder or file with Eedi's `test.csv`, a BEIR
    folder without qrels, JSON Lines, CSV or Parquet with `query` or `text`, or a text file with a query per line.
    Labels are not read. options: as for `load_retrieval`. Raises DataError naming file and line."""
    given = parse_options(options, str(path))
    queries = _read(path, given, labelled=False).queries
    check_queries(queries, str(path))
    if "instruction" in given:
        queries = [query._replace(task=given["instruction"][0]) for query in queries]
    return queries


def _read(path: Path, options: Options, *, labelled: bool, sampled: bool = False) -> RetrievalData:
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected data; check the path")
    if eedi.is_known(path, labelled=labelled):
        _refuse_options(path, options, "Eedi", ("template",))
        template = "".join(options.get("template", ()))
        return eedi.read(path, labelled=labelled, template=template)
    if beir.is_folder(path):
        _refuse_options(path, options, "BEIR", ())
        return beir.read(path, labelled=labelled, sampled=sampled)
    tables = list_tables(path, options)
    files = []
    for file in sorted(path.glob("[!.]*")):
        if get_suffix(file) in (".jsonl", ".csv", ".tsv", ".xlsx") and file.name != POOL:
            files.append(file)
    if len(files) > 1 or (files and tables):
        names = ", ".join(file.name for file in (*files, *tables)[:4])
        raise DataError(
            f"{path}: several data files ({names}); expected one, or Parquet or Arrow files alone; give one of them as"
            " data, and others as valid and test"
        )
    if files:
        path = files[0]
    if not tables and get_suffix(path) not in (
        pairs.SUFFIXES if labelled else (*pairs.SUFFIXES, ".txt")
    ):
        raise DataError(
            f"{path}: no known format; expected a folder with train.csv and {eedi.MAPPING} (Eedi), one with"
            " corpus.jsonl, queries.jsonl and qrels/ (BEIR), a .jsonl file (FlagEmbedding), a .jsonl, .csv or .parquet"
            " file of pairs, or a folder of .parquet files; see docs/data.md"
        )
    if "split" in options and not path.is_dir():
        raise DataError(
            f"{path}: ?split= given; expected a folder of Parquet or Arrow files; leave it out, since the rows of a"
            " column `split` are in the splits that it names"
        )
    return pairs.read(path, options, labelled=labelled, sampled=sampled)


def _refuse_options(path: Path, options: Options, kind: str, allowed: Sequence[str]) -> None:
    """Raise DataError for an option that says how columns are read, where the columns have fixed names."""
    for name in (*COLUMNS, "template", "ignore", "min_score", "split"):
        if name in options and name not in allowed:
            raise DataError(
                f"{path}: '?{name}=' given; expected no columns for {kind}; leave it out"
            )
