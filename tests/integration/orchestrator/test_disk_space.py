"""A step is refused before it starts if it writes more than is free at that time."""

from __future__ import annotations

from pathlib import Path

from command import run

RECIPE = """
from dataclasses import dataclass
from pathlib import Path
from ratchet.orchestrator.job_interface import Job, Needs, Result
from ratchet.orchestrator.step import Row, Summary, step

@dataclass(frozen=True)
class Config:
    text: str = ""

@dataclass(frozen=True)
class Inputs:
    before: Path | None = None

def write(context, config, inputs):
    (context.out / "text").write_text(config.text)
    return Result({})

def estimate(config, inputs, resources, parents):
    return Needs(0.0, 0.1, disk=1e9) if inputs.before else None

JOB = Job("write", config=Config, inputs=Inputs, run=write, needs=estimate)

def growing() -> Summary:
    \"\"\"Two steps. What the second one writes is known once the first one has run.\"\"\"
    first = step("first", JOB, text="first")
    return Summary([Row("one", {}, [first, step("second", JOB, before=first, text="second")])])
"""


def test_what_is_known_late_is_refused_before_the_step(
    tmp_path: Path, shared_ray: tuple[str, ...]
) -> None:
    (tmp_path / "growing.py").write_text(RECIPE)
    command = ("run", str(tmp_path / "growing.py"), "--store", str(tmp_path / "store"))
    status, output = run(*command, *shared_ray)
    assert status == 1, output
    assert (
        "step second: writes up to 1000000000.0 GB, checkpoints included; expected at most the"
        in output
    )
    assert "1/2 steps, 1 failed" in output
    status, output = run(*command)
    assert status == 2, output
    assert "step second: writes up to 1000000000.0 GB" in output
