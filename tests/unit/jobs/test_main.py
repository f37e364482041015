"""The command line of a single job: wrong arguments, help and JSON Schema."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from pathlib import Path

import pytest

from ratchet.jobs.__main__ import find_declarations, main
from ratchet.orchestrator.job_interface.settings import field_docs


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["evaluate"], "'evaluate' given; expected one of compare_checkpoints, .*; did you mean 'evaluate_papers'"),
        (
            ["prepare", "--out", "{out}", "--set", "sed=1"],
            "prepare.sed: unknown setting; expected one of .*; did you mean 'seed'",
        ),
        (["prepare", "--out", "{out}", "--set", "seed=x"], "seed: 'x' given; expected a valid integer"),
        (["prepare", "--out", "{out}", "--set", "seed"], "--set: 'seed' given; expected NAME=VALUE"),
        (["prepare", "--out", "{out}", "--data", "/nowhere"], "--data: /nowhere does not exist"),
        (["prepare", "--out", "{here}"], "is not empty; expected a new folder"),
        (["prepare", "--out", "{out}", "--set", "test_fraction=2"], "test_fraction: .2. given; expected < 1"),
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


OWN = """from dataclasses import dataclass
from pathlib import Path
from ratchet.orchestrator.job_interface import Job, Result
@dataclass(frozen=True)
class Config:
    size: int = 3
@dataclass(frozen=True)
class Inputs:
    model: Path | None = None
def run(context, config, inputs):
    return Result({"size": config.size})
JOB = Job("own", version=1, config=Config, inputs=Inputs, run=run)
"""


@pytest.mark.parametrize("verb", ["own_verb_{}", "own_verb_{}.py", "./own_verb_{}.py"])
def test_an_own_job_in_the_working_folder_is_found(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    number = len(verb)
    (tmp_path / f"own_verb_{number}.py").write_text(OWN)
    (tmp_path / "data.py").write_text("raise SystemError\n")
    assert main([verb.format(number), "--out", "made", "--set", "size=x"]) == 2
    assert "--set size: 'x' given; expected a valid integer" in capsys.readouterr().err
    assert main([verb.format(number), "--out", "made", "--model", "nobody/nothing"]) == 2
    assert "model 'nobody/nothing': neither a folder, nor in the hub's cache" in capsys.readouterr().err


def test_every_job_is_listed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"embed", "evaluate_retrieval", "mine", "prepare"} <= set(find_declarations())
    assert not {"splits", "config", "shard_map"} & set(find_declarations())
    for verb, module in find_declarations().items():
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert "--out" in shown
        config = importlib.import_module(module).Config
        words = " ".join(shown.split())
        assert set(field_docs(config)) == {field.name for field in dataclasses.fields(config)}, (
            "a setting is undocumented"
        )
        assert all(text in words for text in field_docs(config).values())


def test_the_schema_of_the_settings_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mine", "--json-schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["num_negatives"] | {"title": ""} == {
        "default": 15,
        "description": "Negatives per query. Missing ones are drawn at random from the candidates.",
        "minimum": 1,
        "title": "",
        "type": "integer",
    }
