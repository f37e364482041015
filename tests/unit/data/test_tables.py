"""Shards that are damaged, or no files, are named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.data.tables import CORPUS, read_shards, write_shards
from ratchet.errors import DataError


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def replace_with_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (truncate, r"shard-00001\.parquet: cannot be read as Parquet \(.*\); expected a shard; run the step again"),
        (lambda path: path.write_bytes(b""), r"shard-00001\.parquet: cannot be read as Parquet"),
        (lambda path: path.write_text("id,text\n"), r"shard-00001\.parquet: cannot be read as Parquet"),
        (replace_with_pipe, r"shard-00001\.parquet: a named pipe given; expected a regular file"),
        (lambda path: (path.unlink(), path.mkdir()), r"shard-00001\.parquet: a folder given; expected a file"),
    ],
)
def test_a_shard_that_cannot_be_read_is_named(tmp_path: Path, harm: Callable[[Path], object], said: str) -> None:
    write_shards(tmp_path, [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}], CORPUS, 1)
    assert read_shards(tmp_path, ["id"]).num_rows == 2
    harm(tmp_path / "shard-00001.parquet")
    with pytest.raises(DataError, match=said):
        read_shards(tmp_path, ["id"])
