"""The example in docs/adding-a-job.md: it is short, it can be planned, and its job works as the text says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.data.tables import MINED, read_shards, write_shards
from ratchet.orchestrator.job_interface import Context, Resources

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "adding-a-job.md"
FILES = dict(
    zip(
        re.findall(r"^## The \w+: `(\w+\.py)`$", DOCUMENT.read_text(), re.MULTILINE),
        re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL),
        strict=True,
    )
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_example_is_short() -> None:
    assert list(FILES) == ["drop_hubs.py", "recipe.py"]
    assert sum(len(text.splitlines()) for text in FILES.values()) <= 60


def plan(folder: Path, *settings: str, file: str = "recipe.py") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "ratchet.orchestrator",
        "plan",
        f"./{file}",
        "--store",
        str(folder / "store"),
    ]
    options = [part for setting in settings for part in ("--set", setting)]
    return subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True)


def test_the_example_plans(folder: Path) -> None:
    done = plan(folder, "drop_hubs.max_fraction=0.02")
    assert done.returncode == 0, done.stderr
    for name in (
        "prepare",
        "embed_queries",
        "embed_corpus",
        "mine",
        "drop_hubs",
        "finetune_all",
        "finetune_no_hubs",
    ):
        assert name in done.stdout


def test_its_job_is_a_recipe_by_itself(folder: Path) -> None:
    write_shards(folder / "mined", [], MINED, 2)
    done = plan(folder, f"mined={folder / 'mined'}", "max_fraction=0.02", file="drop_hubs.py")
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[:1]] == [["drop_hubs", "to"]]


def test_the_bounds_of_its_setting_are_checked(folder: Path) -> None:
    done = plan(folder, "drop_hubs.max_fraction=2.0")
    assert done.returncode == 2
    assert "max_fraction" in done.stderr
    assert "expected <= 1" in done.stderr


def test_its_job_drops_hubs(folder: Path) -> None:
    specification = importlib.util.spec_from_file_location("drop_hubs", folder / "drop_hubs.py")
    assert specification is not None
    assert specification.loader is not None
    sys.modules["drop_hubs"] = job = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(job)
    rows = [
        {
            "id": f"q{i}",
            "text": "query",
            "positives": ["p"],
            "negatives": ["hub", f"n{i}"],
            "positive_scores": [1.0],
            "negative_scores": [0.5, i / 8],
        }
        for i in range(4)
    ]
    write_shards(folder / "mined", rows, MINED, 10)
    out = folder / "out"
    context = Context("drop_hubs", "0" * 64, 1, out, folder / "work", Resources())
    result = job.run(context, job.Config(max_fraction=0.5), job.Inputs(folder / "mined"))
    assert result.metrics == {"hubs": 1, "negatives": 4}
    found = read_shards(out).to_pylist()
    assert [row["negatives"] for row in found] == [[f"n{i}"] for i in range(4)]
    assert [row["negative_scores"] for row in found] == [[i / 8] for i in range(4)]
