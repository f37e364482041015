"""Mistakes in the words of a command: names, options, numbers, stores."""

from __future__ import annotations

from pathlib import Path

import pytest
from mistakes import Mistake, check, parametrize

STORES = [
    Mistake(
        "gc of a git repository",
        "gc --yes --keep 0 --grace-period 0 --store repository/.git",
        r"store repository/\.git: no store there; expected a folder .* with a file FORMAT; check --store",
        {"repository/.git/objects/ab/cdef": "blob", "repository/.git/HEAD": "ref: refs/heads/main\n"},
    ),
]


@parametrize(STORES)
def test_a_mistake_is_answered_in_one_line(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check(mistake, tmp_path, monkeypatch, capsys)
