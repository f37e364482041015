"""Rows of a test split are never trained on, and no file of a folder is left out without a word."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.data.formats.detection import load_queries, load_retrieval
from ratchet.errors import DataError


def write_files(folder: Path, names: Sequence[str], **columns: Any) -> Path:
    """Write six pairs into each file."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"query": f"{name} q {n}", "positive": f"{name} p {n}", **columns} for n in range(6)
        ]
        if path.suffix == ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        elif path.suffix == ".csv":
            lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
            path.write_text("\n".join(lines) + "\n")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def count_splits(path: Path, options: str = "") -> Counter[str | None]:
    return Counter(query.split for query in load_retrieval(path, options).queries)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train.parquet", "eval.parquet"], {"train": 6, "test": 6}),
        (["training.parquet", "testing.parquet"], {"train": 6, "test": 6}),
        (["TRAIN.parquet", "Validation.parquet"], {"train": 6, "valid": 6}),
        (["default/train/0000.parquet", "default/test/0000.parquet"], {"train": 6, "test": 6}),
        (["test.parquet"], {"test": 6}),
        (["test/0000.parquet"], {"test": 6}),
        (["data/train-00000-of-00001.parquet"], {None: 6}),
        (["a.parquet", "b.parquet"], {None: 12}),
    ],
)
def test_names_of_files_tell_the_splits(
    tmp_path: Path, names: list[str], splits: dict[str | None, int]
) -> None:
    assert count_splits(write_files(tmp_path, names)) == splits


def test_a_file_that_is_given_itself_is_the_data(tmp_path: Path) -> None:
    write_files(tmp_path, ["test.parquet", "test.jsonl"])
    assert (
        count_splits(tmp_path / "test.parquet")
        == count_splits(tmp_path / "test.jsonl")
        == {None: 6}
    )


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (
            ["train.parquet", "holdout.parquet"],
            r"holdout\.parquet: its name tells no split, but those of others do",
        ),
        (
            ["train.parquet", "test.parquet", "more.parquet"],
            r"more\.parquet: its name tells no split",
        ),
        (
            ["train.jsonl", "test.jsonl"],
            r"several data files \(test\.jsonl, train\.jsonl\); expected one",
        ),
        (["train.csv", "test.csv"], r"several data files \(test\.csv, train\.csv\); expected one"),
        (["train.jsonl", "test.csv"], "several data files"),
        (["train.jsonl", "test.parquet"], "several data files"),
        (["train.jsonl", "data/test.parquet"], "several data files"),
        (["train.parquet", "test.csv"], "several data files"),
        (
            ["train-00000-of-00002.parquet"],
            r"1 of the 2 files train-\*-of-00002 given; expected all",
        ),
        (
            ["data/train-00000-of-00003.parquet", "data/train-00002-of-00003.parquet"],
            "2 of the 3 files train-",
        ),
        (["train-00001-of-00002.arrow"], "1 of the 2 files train-"),
    ],
)
def test_no_file_of_a_folder_is_left_out(tmp_path: Path, names: list[str], says: str) -> None:
    write_files(tmp_path, names)
    with pytest.raises(DataError, match=says):
        load_retrieval(tmp_path)


def test_one_split_of_a_folder_can_be_read(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        [
            "train-00000-of-00002.parquet",
            "train-00001-of-00002.parquet",
            "eval.parquet",
            "b.parquet",
        ],
    )
    assert count_splits(tmp_path, "split=train") == {None: 12}
    assert count_splits(tmp_path, "split=TEST") == {None: 6}
    assert count_splits(tmp_path, "split=b") == {None: 6}
    with pytest.raises(
        DataError, match=r"\?split=valid given; expected .*b\.parquet, eval\.parquet"
    ):
        load_retrieval(tmp_path, "split=valid")
    folder = write_files(tmp_path / "only", ["data/train/0000.parquet"])
    assert count_splits(folder, "split=train") == {None: 6}


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_the_option_split_is_for_folders(tmp_path: Path, suffix: str) -> None:
    path = write_files(tmp_path, [f"x.{suffix}"], Split="eval") / f"x.{suffix}"
    assert count_splits(path) == {"test": 6}
    for read in (load_retrieval, load_queries):
        with pytest.raises(DataError, match=r"\?split= given; expected a folder"):
            read(path, "split=test")


def write_flag(path: Path, **columns: Any) -> Path:
    rows = [{"query": f"q {n}", "pos": [f"p {n}"], "neg": [f"n {n}"], **columns} for n in range(6)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_flag_embedding_has_columns_of_pairs(tmp_path: Path) -> None:
    path = write_flag(tmp_path / "x.jsonl", split="test", group="one", label=1)
    found = load_retrieval(path)
    assert {(query.split, query.group) for query in found.queries} == {("test", "one")}
    assert found.unread == []
    assert not any(query.negatives for query in load_retrieval(path, "ignore=neg").queries)
    for column, says in {
        "label": r"x\.jsonl: no row is a pair by its label",
        "score": "column score given",
    }.items():
        write_flag(path, **{column: 0})
        with pytest.raises(DataError, match=says):
            load_retrieval(path)
        assert len(load_retrieval(path, f"ignore={column}").queries) == 6
    assert load_retrieval(write_flag(path, type="normal")).unread == []


@pytest.mark.parametrize("column", ["Label", " label", "relevance", "is_duplicate", "is_relevant"])
def test_labels_are_known_by_all_their_names(tmp_path: Path, column: str) -> None:
    path = write_files(tmp_path, ["x.csv"], **{column: "0"}) / "x.csv"
    with pytest.raises(DataError, match=r"x\.csv: no row is a pair by its label"):
        load_retrieval(path)


@pytest.mark.parametrize("column", ["negative1", "neg_1", "hard_negative_1", "negative_12"])
def test_numbered_negatives_are_read(tmp_path: Path, column: str) -> None:
    path = write_files(tmp_path, ["x.csv"], **{column: "n"}) / "x.csv"
    assert all(len(query.negatives) == 1 for query in load_retrieval(path).queries)


@pytest.mark.parametrize("text", ["\"['n 1', 'n 2']\"", '"[""n 1"", ""n 2""]"'])
def test_a_list_that_was_written_as_a_text_is_refused(tmp_path: Path, text: str) -> None:
    path = write_files(tmp_path, ["x.csv"], negative=text) / "x.csv"
    with pytest.raises(
        DataError, match=r"x\.csv:2: .* given, a list as a text; expected a text in each field"
    ):
        load_retrieval(path)
