"""Completion as a shell asks for it: by the variables of argcomplete, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def complete(line: str, folder: Path) -> list[str]:
    """Return what the shell would offer at the end of a line."""
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    asked |= {
        "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "found"),
        "COMP_TYPE": "9",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " ",
    }
    ratchet = Path(sys.executable).with_name("ratchet")
    subprocess.run([str(ratchet)], cwd=folder, env={**os.environ, **asked}, check=True, timeout=120)
    return [word.strip() for word in (folder / "found").read_text().split("\n")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("ratchet sta", ["status"]),
        ("ratchet run quick", ["quickstart"]),
        ("ratchet run quickstart --repa", ["--repair"]),
        ("ratchet run quickstart --set iter", ["iterations="]),
        ("ratchet plan quickstart --set finetune_embedder.learning_r", ["finetune_embedder.learning_rate="]),
        ("ratchet run nosuch --set iter", [""]),
        ("ratchet status 2", [""]),
    ],
)
def test_words_are_completed(tmp_path: Path, line: str, offered: list[str]) -> None:
    assert complete(line, tmp_path) == offered
