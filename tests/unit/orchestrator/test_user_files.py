"""Users' files with the names of Ratchet's folders: neither is ever imported instead of the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]

RECIPE = '''
from dataclasses import dataclass
import data, jobs, models.own
from ratchet.jobs.retrieval import prepare
from ratchet.orchestrator.job_interface import Job, Result
from ratchet.orchestrator.step import Row, Summary, step

@dataclass(frozen=True)
class Config:
    count: int = data.COUNT

@dataclass(frozen=True)
class Inputs:
    pass

def run(context, config, inputs):
    return Result({"count": config.count})

JOB = Job("count_rows", version=1, config=Config, inputs=Inputs, run=run)

def recipe() -> Summary:
    """A step of the user's job and one of Ratchet's."""
    assert models.own.NAME == "own"
    counted, prepared = step("count_rows", JOB), step("prepare", prepare.JOB)
    return Summary([Row("row", {"count": counted.metric("count"), "queries": prepared.metric("queries")})])
'''


def write_files(folder: Path, *, count: str = "") -> Path:
    """Write `data.py`, `jobs.py` and a package `models`; return the folder."""
    (folder / "models").mkdir(parents=True)
    (folder / "data.py").write_text(count)
    (folder / "jobs.py").write_text("")
    (folder / "models" / "__init__.py").write_text("")
    (folder / "models" / "own.py").write_text("NAME = 'own'\n")
    return folder


def plan(recipe: str, folder: Path, *command: str) -> str:
    done = subprocess.run(
        [*command, "plan", recipe, "--store", str(folder / "store")],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        (str(Path(sys.executable).with_name("ratchet")),),
        (sys.executable, "-m", "ratchet.orchestrator"),
    ],
    ids=["ratchet", "python -m ratchet.orchestrator"],
)
def test_a_recipe_imports_its_own_files_and_ratchets_jobs(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    folder = write_files(tmp_path, count="COUNT = 7\n")
    (folder / "recipe.py").write_text(RECIPE)
    shown = plan("./recipe.py", folder, *command)
    assert "count_rows" in shown
    assert "prepare" in shown


def test_recipe_folder_comes_first(tmp_path: Path) -> None:
    here, beside = (
        write_files(tmp_path / "here"),
        write_files(tmp_path / "beside", count="COUNT = 7\n"),
    )
    (beside / "recipe.py").write_text(RECIPE)
    assert "count_rows" in plan(
        "../beside/recipe.py", here, sys.executable, "-m", "ratchet.orchestrator"
    )


def test_files_in_the_working_folder_do_not_hide_ratchets(tmp_path: Path) -> None:
    folder = write_files(tmp_path)
    assert "iter0/mine" in plan("quickstart", folder, sys.executable, "-m", "ratchet.orchestrator")


def test_a_recipe_imports_its_own_files_from_a_checkout(tmp_path: Path) -> None:
    """`python -m orchestrator` in a checkout, whose folders are called `data`, `jobs` and `models` too."""
    folder = write_files(tmp_path, count="COUNT = 7\n")
    (folder / "recipe.py").write_text(RECIPE)
    command = [
        sys.executable,
        "-m",
        "orchestrator",
        "plan",
        str(folder / "recipe.py"),
        "--store",
        str(folder / "s"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "count_rows" in done.stdout
