"""BEIR folders: everything in them is read, counted, named or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
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


def write_table(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    pq.write_table(
        pa.Table.from_pylist([{"_id": "0", "text": "t", "query-id": "0", "corpus-id": "1"}]), path
    )


@pytest.mark.parametrize(
    ("add", "says"),
    [
        (
            lambda p: write_table(p / "corpus/a.parquet"),
            r"corpus\.jsonl: .*a\.parquet is there too; expected one",
        ),
        (
            lambda p: write_table(p / "queries/a.parquet"),
            r"queries\.jsonl: .*a\.parquet is there too",
        ),
        (
            lambda p: write_table(p / "qrels/train.parquet"),
            r"train\.parquet and test\.tsv given; expected files of one",
        ),
        (
            lambda p: (p / "qrels/train.jsonl").write_text("{}"),
            r"test\.tsv and train\.jsonl given; expected files of",
        ),
        (
            lambda p: [(p / f"qrels/{name}.tsv").write_text(HEADER) for name in ("dev", "val")],
            "dev and val given",
        ),
        (
            lambda p: (p / "qrels/eval.tsv").write_text(HEADER),
            r"eval\.tsv: split 'eval' given; expected train, dev",
        ),
    ],
)
def test_no_file_is_left_out(folder: Path, add: Callable[[Path], object], says: str) -> None:
    add(folder)
    with pytest.raises(DataError, match=says):
        load_retrieval(folder)


def test_all_shards_must_be_there(folder: Path) -> None:
    (folder / "qrels" / "test.tsv").unlink()
    write_table(folder / "qrels" / "test-00001-of-00002.parquet")
    with pytest.raises(
        DataError, match=r"qrels: 1 of the 2 files test-\*-of-00002 given; expected all"
    ):
        load_retrieval(folder)


@pytest.mark.parametrize("header", ["corpus-id\tquery-id\tscore\n", "docid\tqid\trelevance\n"])
def test_labels_in_another_order_are_refused(folder: Path, header: str) -> None:
    (folder / "qrels" / "test.tsv").write_text(header + "1\t0\t1\n")
    with pytest.raises(
        DataError,
        match=r"test\.tsv:1: .* given; expected query-id, corpus-id and score in this order",
    ):
        load_retrieval(folder)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            [{"label": 0}],
            r"test\.jsonl:1: no field 'score'; found 'query-id, corpus-id, label'; expected one",
        ),
        ([{"score": 2}, {}], r"test\.jsonl:2: no field 'score'"),
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


def test_an_infinite_score_is_refused(folder: Path) -> None:
    (folder / "qrels" / "test.tsv").unlink()
    rows = [{"query-id": "0", "corpus-id": "1", "score": float("inf")}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "qrels" / "test.parquet")
    with pytest.raises(DataError, match=r"score inf given; expected a whole number"):
        load_retrieval(folder)
