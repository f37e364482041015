"""Tables: damaged and missing shards are named, large tables are memory-mapped, and texts are found by id."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.tables import (
    CORPUS,
    MINED,
    Texts,
    hash_shards,
    hash_texts,
    read_listed,
    read_shards,
    read_texts,
    take_texts,
    write_shards,
)
from ratchet.errors import DataError


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def replace_with_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            truncate,
            r"shard-00001\.parquet: cannot be read as Parquet \(.*\); expected a shard; run the step again",
        ),
        (lambda path: path.write_bytes(b""), r"shard-00001\.parquet: cannot be read as Parquet"),
        (
            lambda path: path.write_text("id,text\n"),
            r"shard-00001\.parquet: cannot be read as Parquet",
        ),
        (replace_with_pipe, r"shard-00001\.parquet: a named pipe given; expected a regular file"),
        (
            lambda path: (path.unlink(), path.mkdir()),
            r"shard-00001\.parquet: a folder given; expected a file",
        ),
    ],
)
def test_a_shard_that_cannot_be_read_is_named(
    tmp_path: Path, harm: Callable[[Path], object], said: str
) -> None:
    write_shards(tmp_path, [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}], CORPUS, 1)
    assert read_shards(tmp_path, ["id"]).num_rows == 2
    harm(tmp_path / "shard-00001.parquet")
    with pytest.raises(DataError, match=said):
        read_shards(tmp_path, ["id"])


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[Path, list[dict[str, str]]]:
    """A corpus of three shards, and its rows."""
    rows = [{"id": f"d{n}", "text": f"text {n % 7} ü" * 100} for n in range(20)]
    write_shards(tmp_path / "corpus", rows, CORPUS, 8)
    return tmp_path / "corpus", rows


def test_texts_are_found_by_id(corpus: tuple[Path, list[dict[str, str]]]) -> None:
    texts = Texts(read_shards(corpus[0]))
    assert dict(texts) == {row["id"]: row["text"] for row in corpus[1]}
    assert (len(texts), "d20" in texts, "d19" in texts) == (20, False, True)
    check_many(texts, corpus[1])


def check_many(texts: Texts, rows: list[dict[str, str]]) -> None:
    """Texts of several ids come in the order of the ids, which may be repeated."""
    numbers = [7, 0, 19, 7, 12]
    assert texts.find([f"d{number}" for number in numbers]) == [
        rows[number]["text"] for number in numbers
    ]
    assert texts.find([]) == []
    for names in (["d20"], ["d3", "d20", "d4"]):
        with pytest.raises(KeyError, match="d20"):
            texts.find(names)


def test_hashes_of_texts() -> None:
    texts = [*(row % 300 for row in range(1000)), "ü", "", "a\0b"]
    hashes = hash_texts(
        pa.chunked_array([[str(text) for text in texts[:400]], list(map(str, texts[400:]))])
    )
    assert len(set(hashes.tolist())) == len(set(map(str, texts)))
    assert (hashes[:300] == hashes[300:600]).all()
    assert hash_texts(pa.chunked_array([["a", "ü"]])).tolist() == [
        -4496393130729816112,
        6689755093696353227,
    ]
    assert len(hash_texts(pa.chunked_array([], pa.string()))) == 0


def test_texts_are_taken_from_more_than_arrow_joins() -> None:
    million = pa.array([chr(97 + at) * 1_000_000 for at in range(16)])
    column = pa.chunked_array([million] * 150)
    assert column.nbytes > 2**31
    assert [text[0] for text in take_texts(column, np.array([2399, 0, 17, 17]))] == [
        "p",
        "a",
        "b",
        "b",
    ]
    assert take_texts(column, []) == []
    with pytest.raises(pa.ArrowInvalid, match="overflow"):  # when this passes, `take` will do
        column.take([0])


def test_documents_are_read_by_id_and_hashed_shard_by_shard(tmp_path: Path) -> None:
    write_shards(
        tmp_path, [{"id": f"d{n}", "text": f"text {n % 40}"} for n in range(100)], CORPUS, 30
    )
    wanted = pa.chunked_array([["d97", "d3"], ["unknown", "d3", "d30"]])
    texts = read_texts(tmp_path, wanted)
    assert list(texts.items()) == [
        (name, f"text {int(name[1:]) % 40}") for name in ("d3", "d30", "d97")
    ]
    assert len(read_texts(tmp_path, pa.chunked_array([], pa.string()))) == 0
    np.testing.assert_array_equal(hash_shards(tmp_path), hash_texts(read_shards(tmp_path)["text"]))


def test_the_ids_of_lists_are_read(tmp_path: Path) -> None:
    """All lists of a folder count, in all shards; they may be empty."""
    rows = [
        {"id": f"q{n}", "text": "", "positives": [f"p{n}"], "negatives": ["n", f"n{n}"]}
        for n in range(3)
    ]
    write_shards(tmp_path / "mined", rows, MINED, 2)
    assert sorted(read_listed(tmp_path / "mined").to_pylist()) == [
        "n",
        "n",
        "n",
        "n0",
        "n1",
        "n2",
        "p0",
        "p1",
        "p2",
    ]
    write_shards(tmp_path / "empty", [{"id": "q", "positives": [], "negatives": []}], MINED, 2)
    assert read_listed(tmp_path / "empty").to_pylist() == []
