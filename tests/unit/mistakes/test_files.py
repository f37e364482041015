"""Wrong kinds of files at the path that a reader reads: the same mistakes for every reader."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import read_data
from mistakes import Mistake, check, parametrize

# Some files are large.
pytestmark = pytest.mark.slow

BEIR = {
    "b/corpus.jsonl": "".join(
        json.dumps({"_id": f"d{i}", "text": f"text {i}"}) + "\n" for i in range(5)
    ),
    "b/queries.jsonl": "".join(
        json.dumps({"_id": f"q{i}", "text": f"query {i}"}) + "\n" for i in range(20)
    ),
    "b/qrels/all.tsv": "".join(f"q{i}\td{i % 5}\t1\n" for i in range(20)),
}
EEDI_MAPPING = "e/misconception_mapping.csv"
EEDI = {
    "e/train.csv": "QuestionId,ConstructName,CorrectAnswer,QuestionText,AnswerAText,AnswerBText,AnswerCText,"
    "AnswerDText,MisconceptionAId,MisconceptionBId,MisconceptionCId,MisconceptionDId\n"
    + "".join(f"{i},Add,A,What is {i}+1?,{i + 1},{i},{i + 2},9,,0.0,1.0,\n" for i in range(20)),
    EEDI_MAPPING: "MisconceptionId,MisconceptionName\n0,Forgets\n1,Adds twice\n",
}
READERS = {
    # name: (file, command, other files)
    "corpus": ("b/corpus.jsonl", "retrieval --set data=b", BEIR),
    "queries": ("b/queries.jsonl", "retrieval --set data=b", BEIR),
    "qrels": ("b/qrels/all.tsv", "retrieval --set data=b", BEIR),
    "eedi": ("e/train.csv", "retrieval --set data=e", EEDI),
    "mapping": (EEDI_MAPPING, "retrieval --set data=e", EEDI),
    "flag": ("f.jsonl", "retrieval --set data=f.jsonl", {}),
    "papers": ("p.jsonl", "papers --set data=p.jsonl", {}),
    "gsm8k": ("g.jsonl", "gsm8k --set data=g.jsonl", {}),
    "squad": ("s.json", "squad-batch --set data=s.json", {}),
    "countdown": ("c.jsonl", "countdown --set data=c.jsonl", {}),
}
CONTENTS: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", r": the file is empty"),
    "blank": ("\n  \n\n", r": only blank lines"),
    "utf-16": ('{"a": "é"}\n'.encode("utf-16"), r": UTF-16 given"),
    "utf-32": ('{"a": 1}\n'.encode("utf-32"), r": UTF-32 given"),
    "utf-16 without a mark": ('{"a": 1}'.encode("utf-16-le"), r":1: a NUL byte given"),
    "latin-1": ("caf\xe9\n".encode("latin-1"), r":1: byte 0xe9 is not UTF-8"),
    "gzip": (gzip.compress(b"{}\n")[:12], r": damaged gzip \("),
    "zip": (b"PK\x03\x04\x14\0", r": a ZIP archive given"),
    "zeros, as after a crash": (b"\0" * 4096, r":1: a NUL byte given"),
    "binary": (b"\x89PNG\r\n\x1a\n", r":1: byte 0x89 is not UTF-8"),
}

TABLE = [
    Mistake(
        f"{reader}: {what}",
        f"{read_data.COMMAND}{command}",
        file + answer,
        {**others, file: content},
    )
    for reader, (file, command, others) in READERS.items()
    for what, (content, answer) in CONTENTS.items()
]


def replace_with(file: str, make: Callable[[Path], None]) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)

    return prepare


def make_long(path: Path) -> None:
    """A sparse file of one line of 65 MB."""
    with path.open("wb") as file:
        file.truncate(65 * 2**20)


SPECIAL: list[tuple[str, Callable[[Path], None], str]] = [
    ("a named pipe", os.mkfifo, r": a named pipe given"),
    ("a device", lambda path: path.symlink_to("/dev/null"), r": a device given"),
    ("an endless device", lambda path: path.symlink_to("/dev/zero"), r": a device given"),
    ("a line of 65 MB", make_long, r":1: a line of more than 64 MB"),
]
TABLE += [
    Mistake(
        f"{reader}: {what}",
        f"{read_data.COMMAND}{command}",
        file + answer,
        {},
        replace_with(file, make),
    )
    for reader, (file, command, others) in READERS.items()
    if not others
    for what, make, answer in SPECIAL
    if what != "a line of 65 MB" or reader == "flag"  # one reader reads the lines of all
]
COUNT = len(TABLE)


@parametrize(TABLE)
def test_a_mistake_is_answered_in_one_line(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(mistake, tmp_path, monkeypatch, capsys)
