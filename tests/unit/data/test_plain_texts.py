"""Files with a text per line, as shards."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.data.formats.plain_texts import write_text_shards
from ratchet.data.tables import read_shards
from ratchet.errors import DataError


def test_each_line_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\r\n three \n", newline="")
    write_text_shards(tmp_path / "a.txt", tmp_path / "a", rows_per_shard=2)
    rows = [{"id": "1", "text": "one"}, {"id": "3", "text": "two"}, {"id": "4", "text": "three"}]
    assert read_shards(tmp_path / "a").to_pylist() == rows
    (tmp_path / "b.jsonl").write_text('{"_id": "x", "text": "one"}\n{"id": 7, "text": "two"}\n{"text": "three"}\n')
    write_text_shards(tmp_path / "b.jsonl", tmp_path / "b")
    rows = [{"id": "x", "text": "one"}, {"id": "7", "text": "two"}, {"id": "3", "text": "three"}]
    assert read_shards(tmp_path / "b").to_pylist() == rows


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"text": "a"}\n{"txt": "b"}\n', "b.jsonl:2: no field 'text'"),
        ('{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}\n', "b.jsonl:2: id '1' is also at .*b.jsonl:1"),
        ("", "b.jsonl: the file is empty"),
        ("[]\n", "b.jsonl:1: list given"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "b.jsonl").write_text(content)
    with pytest.raises(DataError, match=said):
        write_text_shards(tmp_path / "b.jsonl", tmp_path / "b")
