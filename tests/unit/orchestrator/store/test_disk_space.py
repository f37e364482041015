"""A step that writes more than is free is refused before the run begins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ratchet.errors import InputError
from ratchet.orchestrator import recipe
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.execution import needs
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.store import Store

RECIPE = """
from dataclasses import dataclass
from pathlib import Path
from ratchet.orchestrator.job_interface import Job, Needs, Result
from ratchet.orchestrator.step import Row, Summary, step

@dataclass(frozen=True)
class Config:
    disk: float = 0.0

@dataclass(frozen=True)
class Inputs:
    before: Path | None = None

JOB = Job(
    "write", version=1, config=Config, inputs=Inputs, run=lambda context, config, inputs: Result({}),
    needs=lambda config, inputs, resources, parents: Needs(0.0, 0.1, disk=config.disk),
)

def writing(*, disk: float = 0.0) -> Summary:
    \"\"\"Two steps.\"\"\"
    first = step("first", JOB, disk=disk)
    return Summary([Row("one", {}, [first, step("second", JOB, before=first, disk=disk)])])
"""


@pytest.fixture(scope="module")
def writing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of the recipe."""
    file = tmp_path_factory.mktemp("recipe") / "writing.py"
    file.write_text(RECIPE)
    return str(file)


def make_plan(tmp_path: Path, writing: str, *lines: str) -> Plan:
    store = Store.open(str(tmp_path / "store"))
    plan = Plan(recipe.build(recipe.find(writing), recipe.Settings.read(lines), store)[0], store)
    plan.check()
    return plan


def count_free(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 1e9


@pytest.mark.slow
def test_a_step_that_writes_more_than_is_free_is_refused(
    tmp_path: Path, writing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    command = ["run", writing, "--store", str(store), "--set", "disk=1e9"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert (
        "step first: writes up to 1000000000.0 GB, checkpoints included; expected at most the"
        in said
    )
    assert f"GB that are free at {store}; free some" in said
    assert not list(store.glob("runs/*"))
    assert main(["plan", *command[1:], "--gpu", "H100:80"]) == 0, "for another machine"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["work", "staging"])
def test_what_earlier_attempts_wrote_does_not_count(
    tmp_path: Path, writing: str, folder: str
) -> None:
    plan, machines = (
        make_plan(tmp_path, writing, f"disk={count_free(tmp_path) + 400}"),
        needs.list_known_machines(),
    )
    with pytest.raises(InputError, match="step first: writes up to"):
        needs.check_step_disk(plan, "first", machines)
    shards = plan.store.local("steps", plan.steps["first"].step_id, folder, "1")
    shards.mkdir(parents=True)
    with (shards / "shard-00000.parquet").open("wb") as file:
        file.truncate(500 * 10**9)  # takes no blocks of the disk
    needs.check_step_disk(plan, "first", machines)
    with pytest.raises(InputError, match="step second: writes up to"):
        needs.check_disk(plan, needs.estimate(plan, machines))


def test_steps_that_together_write_more_than_is_free_are_noted(
    tmp_path: Path, writing: str
) -> None:
    for share, noted in ((0.4, False), (0.6, True)):
        plan = make_plan(tmp_path, writing, f"disk={share * count_free(tmp_path)}")
        needs.check_disk(plan, needs.estimate(plan, needs.list_known_machines()))
        assert [
            note for note in plan.notes if note.startswith("the steps write up to ")
        ] == plan.notes
        assert bool(plan.notes) == noted
