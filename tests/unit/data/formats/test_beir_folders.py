"""BEIR folders: everything in them is read, counted, named or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.data.formats.detection import load_retrieval
from ratchet.errors import DataError

HEADER = "query-id\tcorpus-id\tscore\n"


def to_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with six documents and queries that have the same ids, and labels of four queries."""
    rows = [{"_id": str(n), "text": f"text {n}"} for n in range(6)]
    for name in ("corpus", "queries"):
        (tmp_path / f"{name}.jsonl").write_text(to_lines(rows))
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(
        HEADER + "".join(f"{n}\t{n + 1}\t1\n" for n in range(4))
    )
    return tmp_path


def test_queries_without_labels_are_counted(folder: Path) -> None:
    found = load_retrieval(folder)
    assert len(found.queries) == 4
    assert found.notes["queries without a label, left out"] == 2


def test_fields_that_are_not_read_are_named(folder: Path) -> None:
    rows = [
        {"_id": str(n), "text": "t", "metadata": {}, "title": None, "url": "u" * n}
        for n in range(6)
    ]
    (folder / "corpus.jsonl").write_text(to_lines(rows))
    (folder / "queries.jsonl").write_text(
        to_lines([{**row, "metadata": {"a": 1}, "split": "test"} for row in rows])
    )
    assert load_retrieval(folder).unread == ["metadata", "split", "url"]


@pytest.mark.parametrize("option", ["split=test", "ignore=title"])
def test_options_that_would_do_nothing_are_refused(folder: Path, option: str) -> None:
    name = option.partition("=")[0]
    with pytest.raises(DataError, match=rf"'\?{name}=' given; expected no columns for BEIR"):
        load_retrieval(folder, option)


@pytest.mark.parametrize(
    "name", ["corpus/a.parquet", "queries/a.parquet", "qrels/a.parquet", "qrels/a.jsonl"]
)
def test_all_shards_must_be_there(folder: Path, name: str) -> None:
    file = folder / name.replace("a.", "test-00001-of-00002.")
    file.parent.mkdir(exist_ok=True)
    row = {"_id": "0", "text": "t", "query-id": "0", "corpus-id": "1"}
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([row]), file)
    else:
        file.write_text(to_lines([row]))
    with pytest.raises(DataError, match=r"1 of the 2 files test-\*-of-00002 given; expected all"):
        load_retrieval(folder)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"label": 0}], r"test\.jsonl:1: score None given; expected a whole number"),
        ([{"score": 1e300}], r"test\.jsonl:1: score 1e\+300 given; expected a whole number"),
        ([{"score": 10**12}], r"test\.jsonl:1: score 1000000000000 given"),
    ],
)
def test_scores_that_are_not_read_are_refused(
    folder: Path, rows: list[dict[str, Any]], says: str
) -> None:
    (folder / "qrels" / "test.tsv").unlink()
    labels = [{"query-id": "0", "corpus-id": str(n + 1), **row} for n, row in enumerate(rows)]
    (folder / "qrels" / "test.jsonl").write_text(to_lines(labels))
    with pytest.raises(DataError, match=says):
        load_retrieval(folder)


def test_names_that_are_no_splits_are_refused(folder: Path) -> None:
    (folder / "qrels" / "holdout.tsv").write_text(HEADER)
    with pytest.raises(
        DataError, match=r"holdout\.tsv: split 'holdout' given; expected train, dev"
    ):
        load_retrieval(folder)


def test_an_infinite_score_is_refused(folder: Path) -> None:
    (folder / "qrels" / "test.tsv").unlink()
    rows = [{"query-id": "0", "corpus-id": "1", "score": float("inf")}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "qrels" / "test.parquet")
    with pytest.raises(DataError, match=r"score inf given; expected a whole number"):
        load_retrieval(folder)
