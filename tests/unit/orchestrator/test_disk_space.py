"""A step that writes more than is free is refused before the run begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.orchestrator.cli.main import main

RECIPE = """
from dataclasses import dataclass
from ratchet.orchestrator.job_interface import Job, Needs, Result
from ratchet.orchestrator.step import Row, Summary, step

@dataclass(frozen=True)
class Config:
    disk: float = 0.0

@dataclass(frozen=True)
class Inputs:
    pass

JOB = Job(
    "write", version=1, config=Config, inputs=Inputs, run=lambda context, config, inputs: Result({}),
    needs=lambda config, inputs, resources, parents: Needs(0.0, 0.1, disk=config.disk),
)

def writing(*, disk: float = 0.0) -> Summary:
    \"\"\"One step.\"\"\"
    return Summary([Row("one", {}, [step("first", JOB, disk=disk)])])
"""


def test_a_step_that_writes_more_than_is_free_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "writing.py").write_text(RECIPE)
    store = tmp_path / "store"
    command = ["run", str(tmp_path / "writing.py"), "--store", str(store), "--set", "disk=1e9"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "step first: writes up to 1000000000.0 GB, checkpoints included; expected at most the" in said
    assert f"GB that are free at {store}; free some" in said
    assert not list(store.glob("runs/*"))
    assert main(["plan", *command[1:], "--gpu", "H100:80"]) == 0, "for another machine"
