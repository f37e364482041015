"""Mistakes as users type them, and the answers that they get.

A table is a list of `Mistake`; `check` runs the command and compares the answer. Commands run in this process. Commands
that need Ray, signals or a terminal are tested in tests/integration.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ratchet.orchestrator.cli.main import main

_HEADER = b'{"encoder.dense.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
_CONFIG = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "max_position_embeddings": 512,
    "vocab_size": 5,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
}
_TOKENS = {name: f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
MODEL: Mapping[str, str | bytes] = {
    "base/config.json": json.dumps(_CONFIG),
    "base/tokenizer.json": json.dumps(
        {"model": {"vocab": {token: i for i, token in enumerate(_TOKENS.values())}}}
    ),
    "base/tokenizer_config.json": json.dumps(
        {f"{name}_token": token for name, token in _TOKENS.items()}
    ),
    "base/model.safetensors": len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(4),
}
"""The files of an encoder that passes the checks of a plan."""


@dataclass(frozen=True)
class Mistake:
    """A command with a mistake, and the first line of the answer."""

    name: str
    command: str
    """The words after `ratchet`, as in a shell. The working directory is a new folder. A store is added."""
    answer: str
    """A regular expression that the first line of the standard error begins with, after `ratchet: `: the place and what
    was given. A dozen sentences are compared whole (test_sentences). Paths in the
    working directory are relative to it."""
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    """Files in the working directory: relative path -> content. A path that ends with / is an empty folder."""
    prepare: Callable[[Path], Any] | None = None
    """Called with the working directory, for what `files` cannot say (links, FIFOs, Parquet)."""
    status: int = 2


def answers(*pairs: tuple[str, str]) -> list[Mistake]:
    """Return a table of (command, answer), for mistakes that need no files and are named by their command."""
    return [Mistake(command, command, answer) for command, answer in pairs]


def parametrize(*tables: Sequence[Mistake]) -> pytest.MarkDecorator:
    mistakes = [mistake for table in tables for mistake in table]
    names = [mistake.name for mistake in mistakes]
    assert len(set(names)) == len(names), "two mistakes have the same name"
    return pytest.mark.parametrize("mistake", mistakes, ids=names)


def write_files(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def check(
    mistake: Mistake,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Give the command. It must end with the status, one line that matches, and no traceback."""
    write_files(folder, mistake.files)
    if mistake.prepare is not None:
        mistake.prepare(folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RATCHET_STORE", str(folder / "store"))
    monkeypatch.setattr("tempfile.tempdir", str(folder))  # tracebacks
    try:
        status: Any = main(shlex.split(mistake.command))
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    said = captured.err + captured.out
    assert "Traceback (most recent call last)" not in said, said
    lines = captured.err.replace(f"{folder}/", "").splitlines()
    assert status == mistake.status, said
    assert lines, captured.out
    assert lines[0].startswith("ratchet: "), said
    answer = lines[0].removeprefix("ratchet: ")
    assert re.match(mistake.answer, answer, re.DOTALL), said
    assert re.search("; |expected", answer), f"does not say what is expected or to do: {answer}"
