"""Errors in a user's own recipes and jobs: the line names the places in their code, and nothing of Ratchet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mistakes import Mistake, check, parametrize

from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.store import Store

HINT = r""
JOB = """
from dataclasses import dataclass
from ratchet.orchestrator.job_interface import Job, Result
from ratchet.orchestrator.step import Row, Summary, step

@dataclass(frozen=True)
class Config:
    size: int = 1

@dataclass(frozen=True)
class Inputs:
    pass

def run(context, config, inputs):
    return Result({})

def check(config, inputs, parents):
    return {"a": 1}["b"]
"""


def recipe(name: str, body: str, answer: str, **more: str) -> Mistake:
    """Return a recipe in a file of its own. Names are unique, since Python imports a module once."""
    return Mistake(name, f"plan {name}.py", answer + HINT, {f"{name}.py": body, **more})


CODE = [
    recipe(
        "raises",
        "def raises():\n    return 1 / 0\n",
        r"raises\.py:2 in raises: ZeroDivisionError: division by zero",
    ),
    recipe("at_import", "x = {}['a']\n", r"at_import\.py:1: KeyError: 'a'"),
    recipe("no_colon", "def no_colon()\n    pass\n", r"no_colon\.py:1: SyntaxError: expected ':'"),
    recipe("open_bracket", "x = (1,\n", r"open_bracket\.py:1: SyntaxError: '\(' was never closed"),
    recipe("tabs", "def tabs():\n\tif 1:\n        pass\n", r"tabs\.py:3: TabError: .*"),
    recipe("indented", "def indented():\npass\n", r"indented\.py:2: IndentationError: .*"),
    recipe(
        "bad_import",
        "import nosuch_library\n",
        r"bad_import\.py:1: ModuleNotFoundError: No module named 'nosuch_.*",
    ),
    recipe(
        "bad_name",
        "from json import loadz\n",
        r"bad_name\.py:1: ImportError: cannot import name 'loadz' from 'json'.*",
    ),
    recipe(
        "bad_helper",
        "import helper_of_bad\n",
        r"bad_helper\.py:1, helper_of_bad\.py:2: NameError: name 'y' is not defined",
        **{"helper_of_bad.py": "\nx = y\n"},
    ),
    recipe(
        "endless",
        "def endless():\n    return endless()\n",
        r"endless\.py:2 in endless: RecursionError: maximum recursion depth exceeded.*",
    ),
    recipe(
        "endless_pair",
        "def one():\n    return two()\n\ndef two():\n    return one()\n\nendless_pair = one\n",
        r"endless_pair\.py:2 in one, \.\.\., (endless_pair\.py:\d in \w+, ){2}\S+ in \w+: RecursionError: .*",
    ),
    recipe(
        "exits",
        "import sys\n\ndef exits():\n    sys.exit(3)\n",
        r"exits\.py:4 in exits: SystemExit: 3",
    ),
    recipe(
        "asserts",
        "def asserts():\n    assert 1 > 2, 'one is less'\n",
        r"asserts\.py:2 in asserts: AssertionError: one is .*",
    ),
    recipe(
        "silent",
        "def silent():\n    raise ValueError\n",
        r"silent\.py:2 in silent: ValueError: no message",
    ),
    recipe(
        "lines",
        "def lines():\n    raise ValueError('a\\nb')\n",
        r"lines\.py:2 in lines: ValueError: a b",
    ),
    recipe(
        "no_file",
        "def no_file():\n    open('nosuch.txt')\n",
        r"no_file\.py:2 in no_file: FileNotFoundError: .*nosuch\.txt'",
    ),
    recipe(
        "in_group",
        "def in_group():\n    raise ExceptionGroup('two', [ValueError('a')])\n",
        r"in_group\.py:2 in in_group: .*",
    ),
    recipe(
        "in_library",
        "import json\n\ndef in_library():\n    json.loads('{')\n",
        r"in_library\.py:4 in in_library: JSONDecodeError: .*",
    ),
    recipe(
        "checks",
        JOB
        + "\nJOB = Job('checks', version=1, config=Config, inputs=Inputs, run=run, check=check)\n"
        + "\ndef checks() -> Summary:\n    return Summary([], goals=[step('a', JOB)])\n",
        r"checks\.py:18 in check: KeyError: 'b'",
    ),
]


@parametrize(CODE)
def test_an_error_of_the_users_code_names_its_lines(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(mistake, tmp_path, monkeypatch, capsys)


def test_the_traceback_is_in_the_store_or_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept.py").write_text("def kept():\n    return 1 / 0\n")
    command = ["plan", "./kept.py", "--store", "store"]
    assert main(command) == 2
    elsewhere = re.search(r"traceback is in (\S+);", capsys.readouterr().err)
    assert elsewhere
    Path(elsewhere[1]).unlink()
    Store.open(tmp_path / "store")
    assert main(command) == 2
    assert "traceback is in store/errors/" in capsys.readouterr().err
    (file,) = (tmp_path / "store/errors").iterdir()
    assert "Traceback (most recent call last)" in file.read_text()
    assert main([*command, "--debug"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err
