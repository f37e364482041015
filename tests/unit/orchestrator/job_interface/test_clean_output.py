"""Nothing that a command prints controls the terminal, wherever the text comes from."""

from __future__ import annotations

import io
import json
from pathlib import Path

import command
import pytest
from rich.table import Table
from rich.text import Text

from ratchet.orchestrator.job_interface.clean_output import CleanConsole, clean, print_clean

pytestmark = pytest.mark.slow

TITLE = "\x1b]0;owned\x07"
EVIL = f"a{TITLE}b\x1b[2Jc\x9b31md\u202ee\rf\ud800"


def test_text_loses_what_controls_a_terminal() -> None:
    assert clean(EVIL) == "abc31mdef?"
    assert clean("tab\tand\nline, ümläut, 例, 👍") == "tab\tand\nline, ümläut, 例, 👍"
    file = io.StringIO()
    print_clean(EVIL, file)
    assert file.getvalue() == "abc31mdef?\n"


def test_the_console_keeps_its_own_colours_only() -> None:
    file = io.StringIO()
    console = CleanConsole(file=file, force_terminal=True, width=80, color_system="truecolor")
    table = Table("name")
    table.add_row(Text(EVIL.removesuffix("\ud800"), style="red"))
    console.print(table)
    console.print(f"x{TITLE}y")
    shown = file.getvalue()
    assert "\x1b[31m" in shown
    assert not any(part in shown for part in ("\x1b]", "\x1b[2J", "\x9b", "\u202e", "\r"))


RECIPE = '''
from dataclasses import dataclass
from ratchet.errors import InputError
from ratchet.orchestrator.job_interface import Job, Result
from ratchet.orchestrator.step import Row, Summary, step

@dataclass(frozen=True)
class Config:
    text: str = ""

@dataclass(frozen=True)
class Inputs:
    pass

def check(config, inputs, parents):
    if config.text:
        raise InputError(f"text: {config.text} given; expected nothing; leave it out")

def run(context, config, inputs):
    return Result({"x": 1})

JOB = Job("make", version=1, config=Config, inputs=Inputs, run=run, check=check)

def evil(*, name: str = "plain") -> Summary:
    """A recipe \\x1b]0;owned\\x07."""
    made = step(name, JOB)
    return Summary([Row("row", {"x": made.metric("x")})])
'''


def test_commands_print_nothing_that_controls_a_terminal(tmp_path: Path) -> None:
    file, data = tmp_path / "evil.py", tmp_path / f"data{TITLE}.jsonl"
    file.write_text(RECIPE)
    data.write_text(json.dumps({"query": "q", "pos": ["p"]}) + "\n" + f"no JSON {TITLE}\n")
    commands = [
        ("plan", str(file), "--set", f"name=a{TITLE}"),
        ("recipes", str(file)),
        ("run", str(file), "--set", f"make.text={TITLE}"),
        ("run", str(file), "--set", f"nothing{TITLE}=1"),
        ("run", "retriever", "--set", f"data={data}"),
        ("run", f"none{TITLE}"),
    ]
    for given in commands:
        _, output = command.run(*given, "--store", str(tmp_path / f"store{TITLE}"), timeout=60)
        assert not any(sign in output for sign in "\x1b\x07"), given
        assert "Traceback" not in output, output


@pytest.mark.parametrize("text", ["\x1b[31m", "\u2066"])
def test_bad_input_of_a_job_by_itself_is_clean_too(tmp_path: Path, text: str) -> None:
    given = ("plan", "jobs/mine", "--set", f"no_such{text}=1", "--store", str(tmp_path / "store"))
    status, output = command.run(*given, timeout=60)
    assert status == 2, output
    assert "no_such" in output
    assert text not in output
