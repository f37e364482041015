"""Detection of the format of a path, and loading of the data in it."""

from __future__ import annotations

from pathlib import Path

from ratchet.data.formats import beir, eedi, flag_embedding, pairs
from ratchet.data.formats.text_files import read_csv, read_json_objects
from ratchet.data.retrieval import Query, RetrievalData, check_data, check_queries
from ratchet.errors import DataError
from ratchet.files import open_regular


def load_retrieval(path: Path, options: pairs.Options | None = None) -> RetrievalData:
    """Load and check data of any known format. options: those of `pairs.parse_options`. Raises DataError naming file
    and line."""
    file, kind = _detect(path, options or {})
    if kind == "eedi":
        data = eedi.read(path)
    elif kind == "beir":
        data = beir.read(path)
    elif kind == "flag_embedding":
        data = flag_embedding.read(file)
    elif kind == "pairs" and file.suffix != ".txt":
        data = pairs.read(file, options or {})
    else:
        raise _unknown(path)
    return check_data(data, str(path))


def load_queries(path: Path, options: pairs.Options | None = None) -> list[Query]:
    """Load queries that need no labels: data of any known format, a folder or file with Eedi's `test.csv`, a BEIR
    folder without qrels, JSON Lines or CSV with `query` or `text`, or a text file with a query per line. Labels are
    not read. Raises DataError naming file and line."""
    file, kind = _detect(path, options or {}, labelled=False)
    if kind == "eedi":
        queries = eedi.read_queries(file)
    elif kind == "beir":
        queries = beir.read_queries(path)
    elif kind == "flag_embedding":
        queries = [
            Query(
                f"q{n}",
                row.query,
                (),
                (),
                group=row.query,
                where=row.where,
                task=row.prompt,
                prompt=row.reranker_prompt,
            )
            for n, row in enumerate(flag_embedding.read_rows(file, labelled=False))
        ]
    else:
        queries = list(pairs.read(file, options or {}, labelled=False).queries)
    return list(check_queries(queries, str(path)))


def _detect(path: Path, options: pairs.Options, *, labelled: bool = True) -> tuple[Path, str]:
    """Return the file with the queries, or the folder, and the name of its format."""
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; expected data; check the path")
    if not path.is_dir():
        open_regular(path).close()
    named = [key for key in options if key in pairs.COLUMNS]
    names = ("train.csv",) if labelled else ("test.csv", "train.csv")
    if (path / eedi.MAPPING).exists() or any((path / name).exists() for name in names):
        found = next((path / name for name in names if (path / name).exists()), path / names[0]), "eedi"
    elif (path / "corpus.jsonl").exists() or (path / "queries.jsonl").exists():
        found = path, "beir"
    elif (
        path.is_dir() and len(files := [p for p in sorted(path.glob("*.jsonl")) if p.name != flag_embedding.POOL]) == 1
    ):
        return _detect(files[0], options, labelled=labelled)
    elif path.suffix == ".csv" and not labelled and "QuestionText" in next(read_csv(path, ()))[1]:
        return path, "eedi"
    elif path.suffix in (".jsonl", ".json") and not named:
        row = next(read_json_objects(path))[1]
        flags = isinstance(row.get("pos"), list) or (not labelled and not {"prompt", "reranker_prompt"}.isdisjoint(row))
        return path, "flag_embedding" if "query" in row and flags else "pairs"
    elif path.suffix in (*pairs.SUFFIXES, ".txt") or pairs.list_tables(path, options):
        return path, "pairs"
    else:
        raise _unknown(path)
    if named:
        raise DataError(f"{path}: a column for the {named[0]} given; expected none for {found[1]}; leave '?...' out")
    return found


def _unknown(path: Path) -> DataError:
    return DataError(
        f"{path}: no known format; expected a folder with train.csv and {eedi.MAPPING} (Eedi), one with corpus.jsonl,"
        " queries.jsonl and qrels/ (BEIR), a .jsonl file (FlagEmbedding), a .jsonl, .csv or .parquet file of pairs, or"
        " a folder of .parquet files; see docs/data.md"
    )
