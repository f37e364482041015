"""Which files of a source count for its digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Source
from ratchet.orchestrator.source_digest import SourceDigests


def test_contents_and_names_count_but_nothing_hidden(tmp_path: Path) -> None:
    folder, digests = tmp_path / "data", SourceDigests(tmp_path / "memory.json")
    (folder / "deep").mkdir(parents=True)
    (folder / "a.jsonl").write_text("1")
    (folder / "deep/b.jsonl").write_text("2")
    first = digests.digest(Source(folder))
    for hidden in (".ratchet/runs/1", "deep/.git"):
        (folder / hidden).mkdir(parents=True)
        (folder / hidden / "events.jsonl").write_text("3")
    (folder / ".note").write_text("4")
    assert digests.digest(Source(folder)) == first
    (folder / "deep/b.jsonl").rename(folder / "deep/c.jsonl")
    assert digests.digest(Source(folder)) != first
    with pytest.raises(InputError, match="no such file in the folder; expected"):
        digests.digest(Source(folder, only=("*.csv",)))
