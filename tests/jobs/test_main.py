"""Jobs by themselves, from the command line."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.__main__ import main, names
from jobs.values import field_docs

ROOT = Path(__file__).resolve().parents[2]


def test_a_job_runs_by_itself_and_prints_its_numbers(problem: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jobs", "evaluate_retrieval", "--queries", str(problem.queries)]
    command += ["--corpus", str(problem.corpus), "--out", "made", "--set", "system=bm25", "--set", "k=1,25"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    values = dict(line.rsplit(None, 1) for line in done.stdout.splitlines())
    assert next(iter(values)) == "map@25"
    assert 0 < float(values["map@25"]) < 1
    assert values["queries"] == "60"
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "per_query.parquet",
        "qrels.trec",
        "ranking",
        "run.trec",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "problem"], "no work folder is left"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["evaluate"], "'evaluate' given; expected one of accept, .*; did you mean 'evaluate_papers'"),
        (["prepare", "--out", "{out}", "--set", "sed=1"], "'sed' given; expected one of .*; did you mean 'seed'"),
        (["prepare", "--out", "{out}", "--set", "seed=x"], "seed: 'x' given; expected a whole number"),
        (["prepare", "--out", "{out}", "--set", "seed"], "--set: 'seed' given; expected NAME=VALUE"),
        (["prepare", "--out", "{out}", "--data", "/nowhere"], "--data: /nowhere does not exist"),
        (["prepare", "--out", "{here}"], "is not empty; expected a new folder"),
        (["prepare", "--out", "{out}", "--set", "test_fraction=2"], "prepare.test_fraction: 2.0 given"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [text.format(out=tmp_path / "out", here=Path(__file__).parent) for text in given]
    assert main(filled) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(said, error), error


def test_every_job_is_listed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"embed", "evaluate_retrieval", "mine", "prepare"} <= set(names())
    assert not {"job", "shards", "values"} & set(names())
    for verb in names():
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert "--out" in shown
        config = importlib.import_module(f"jobs.{verb}").Config
        words = " ".join(shown.split())
        assert set(field_docs(config)) == {field.name for field in dataclasses.fields(config)}, (
            "a setting is undocumented"
        )
        assert all(text in words for text in field_docs(config).values())
