"""Runs and sweeps as jobs of Ray's own command, on a head node that asks for a token."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from nodes import RAY, Nodes, environment_of, free_port

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cluster.md"

RECIPE = '''
import time
from dataclasses import dataclass
from ratchet.orchestrator.job_interface import Job, Result
from ratchet.orchestrator.step import Row, Summary, step
import beside

@dataclass(frozen=True)
class Config:
    seconds: float = 0.0
    metric: str = "value"

@dataclass(frozen=True)
class Inputs:
    pass

def run(context, config, inputs):
    time.sleep(config.seconds)
    (context.out / "found.txt").write_text(str(config.seconds))
    return Result({"value": beside.VALUE, "valid/value": config.seconds})

JOB = Job("fit", version=1, config=Config, inputs=Inputs, run=run, direction=lambda metric: 1)

def toy(data: str = "") -> Summary:
    """A step."""
    return Summary([Row("fit", {"value": step("fit", JOB).metric("value")})])
'''


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, dict[str, str]]]:
    """(the dashboard's port, the environment to reach it) of a head node of its own, which asks for a token."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("a" * 64)
    environment = environment_of(home, RAY_AUTH_MODE="token", PYTHONPATH="")
    dashboard = free_port()
    nodes = Nodes(home, environment, f"--dashboard-port={dashboard}", "--num-cpus=2")
    try:
        until = time.monotonic() + 90
        while time.monotonic() < until:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", dashboard)) == 0:
                    break
            time.sleep(0.5)
        yield dashboard, environment
    finally:
        nodes.end()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory, as a user has it."""
    made = tmp_path / "work"
    made.mkdir()
    (made / "toy.py").write_text(RECIPE)
    (made / "beside.py").write_text("VALUE = 42\n")
    return made


def test_the_command_of_the_page_runs_a_recipe(
    cluster: tuple[int, dict[str, str]], folder: Path
) -> None:
    """Takes half a minute or more: the first job of a cluster, which starts its own driver."""
    port, environment = cluster
    (block,) = re.findall(r"^export RAY_AUTH_MODE.*?\n(?=ray down)", PAGE.read_text(), re.M | re.S)
    given = {
        "run retriever": "run ./toy.py",
        ":8265": f":{port}",
        "s3://BUCKET/PREFIX": f"{folder.parent}/store",
        "/home/ray": str(folder.parent),
    }
    for old, new in given.items():
        assert old in block
        block = block.replace(old, new)
    (folder / "settings.yaml").write_text("fit.seconds: 0.5\n")
    # The page exports it.
    without_mode = {name: value for name, value in environment.items() if name != "RAY_AUTH_MODE"}
    done = subprocess.run(
        ["bash", "-e", "-c", block],
        cwd=folder,
        env=without_mode,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "finished  1/1 steps" in done.stdout
    (report,) = folder.parent.glob("store/runs/*/report.md")
    assert "42" in report.read_text()
    (found,) = folder.parent.glob("store/objects/*/found.txt")
    assert found.read_text() == "0.5"


@pytest.mark.soak
def test_a_sweep_runs_as_a_job(cluster: tuple[int, dict[str, str]], folder: Path) -> None:
    port, environment = cluster
    (folder / "space.yaml").write_text("fit.seconds: choice(0.1, 0.2, 0.3)\n")
    job = ["job", "submit", "--address", f"http://127.0.0.1:{port}", "--working-dir", str(folder)]
    sweep = ["ratchet", "sweep", "./toy.py", "--space", "space.yaml", "--metric", "value"]
    done = subprocess.run(
        [RAY, *job, "--", *sweep, "--trials", "3", "--store", str(folder.parent / "store")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "winner: ratchet run" in done.stdout
    assert list(folder.parent.glob("store/sweeps/*/report.html"))
