"""The code of a user's recipe is edited between and during runs. No result mixes two versions."""

from __future__ import annotations

import json
from pathlib import Path

import command
import pytest
from toy_runs import HEAD
from waiting import wait_for

from ratchet.orchestrator.run_log import list_run_logs
from ratchet.orchestrator.store import Store

RECIPE = (
    HEAD
    + '''
import helper

@dataclass(frozen=True)
class Config:
    number: int = 1
    wait: bool = False

@dataclass(frozen=True)
class Inputs:
    before: Path | None = None

def run(context, config, inputs):
    trace(f"run {context.step}")
    while config.wait and not TRACE.with_name("go").exists():
        time.sleep(0.1)
    import late
    (context.out / "value.txt").write_text(str(helper.FACTOR * config.number))
    return Result({"value": helper.FACTOR * config.number, "late": late.VALUE})

JOB = Job("multiply", version=1, config=Config, inputs=Inputs, run=run, direction=lambda metric: 1)

def toy() -> Summary:
    """Two steps of one job. One process of Ray may do both."""
    first = step("first", JOB)
    second = step("second", JOB, before=first, number=2)
    columns = {f"{s.name}_{name}": s.metric(name) for s in (first, second) for name in ("value", "late")}
    return Summary([Row("toy", columns)])
'''
)


class Project:
    """A recipe with helpers beside it, outside the checkout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("toy.py", RECIPE.replace("TRACE_FILE", str(folder / "trace")))
        self.write("helper.py", "FACTOR = 2\n")
        self.write("late.py", "VALUE = 1\n")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def arguments(self, verb: str, *options: str) -> list[str]:
        return [verb, str(self.folder / "toy.py"), "--store", str(self.folder / "store"), *options]

    def run(self, verb: str, *options: str) -> str:
        status, output = command.run(*self.arguments(verb, *options))
        assert status == 0, output
        return output

    def values(self) -> dict[str, float]:
        """Return the metrics of the newest run's steps."""
        store = Store.open(self.folder / "store")
        found = {}
        for step in next(list_run_logs(store)).steps():
            commit = store.lookup(step["step_id"])
            assert commit is not None
            metrics = store.manifest(commit.manifest).result["metrics"]
            found |= {f"{step['name']}_{name}": value for name, value in metrics.items()}
        return found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.soak
def test_a_changed_helper_beside_the_recipe_is_a_changed_step(project: Project) -> None:
    """Takes half a minute: three runs, two of which start Ray."""
    project.run("run")
    old = {"first_value": 2, "first_late": 1, "second_value": 4, "second_late": 1}
    assert project.values() == old
    project.write("helper.py", "FACTOR = 5\n")
    assert "code helper: changed" in project.run("plan", "--explain")
    project.run("run")
    assert project.values() == {
        "first_value": 5,
        "first_late": 1,
        "second_value": 10,
        "second_late": 1,
    }
    project.write("helper.py", "FACTOR = 2  # as before\n")
    assert "2 reused" in project.run("run")
    assert project.values() == old


@pytest.mark.soak
def test_an_edit_during_a_run_does_not_reach_it(project: Project) -> None:
    """Takes half a minute: Ray starts twice. The first step imports `late` after it was edited."""
    waiting = ("--set", "first.wait=true")
    process = command.start(*project.arguments("run", *waiting))
    trace = project.folder / "trace"
    wait_for(
        lambda: trace.exists() and "run first" in trace.read_text(), "the first step never began"
    )
    project.write("late.py", "VALUE = 7\n")
    project.write("helper.py", "FACTOR = 7\n")
    project.write("go", "")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    before = {"first_value": 2, "first_late": 1, "second_value": 4, "second_late": 1}
    assert project.values() == before
    project.run("run", *waiting)
    assert project.values() == {
        "first_value": 7,
        "first_late": 7,
        "second_value": 14,
        "second_late": 7,
    }
    project.write("late.py", "VALUE = 1\n")
    project.write("helper.py", "FACTOR = 2\n")
    assert "2 reused" in project.run("run", *waiting)
    assert project.values() == before


@pytest.mark.soak
def test_all_trials_of_a_sweep_run_the_code_of_its_start(project: Project) -> None:
    """Takes half a minute: a sweep of three trials, during the first of which the helper is edited."""
    project.write("space.yaml", "first.number: choice(1, 2, 3)\n")
    options = (
        "--space",
        str(project.folder / "space.yaml"),
        "--metric",
        "first.value",
        "--trials",
        "3",
    )
    process = command.start(
        *project.arguments("sweep", *options, "--set", "first.wait=true", "--max-concurrent", "1")
    )
    trace = project.folder / "trace"
    wait_for(
        lambda: trace.exists() and "run first" in trace.read_text(), "the first trial never began"
    )
    project.write("helper.py", "FACTOR = 100\n")
    project.write("go", "")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    (file,) = project.folder.glob("store/sweeps/*/trials.json")
    trials = json.loads(file.read_text())["trials"]
    assert len(trials) == 3
    assert {trial["value"] for trial in trials} <= {2.0, 4.0, 6.0}, "a trial ran the edited helper"


def test_what_cannot_be_followed_is_said_before_a_run(project: Project) -> None:
    project.write(
        "late.py", "import importlib\nVALUE = len(importlib.import_module('js' + 'on').__name__)\n"
    )
    shown = project.run("plan")
    assert "warning: " in shown
    assert "late.py:2: import_module() of a name that is computed cannot be followed" in shown
