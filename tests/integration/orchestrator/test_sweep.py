"""Sweeps through the command, on a real Ray and Ray Tune with small jobs: shared steps, failed trials."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_sweeps import Sweeps


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    made = Sweeps(tmp_path)
    yield made
    subprocess.run(["pkill", "-9", "-f", str(tmp_path)], check=False)


FROM_PYTHON = """
import json, sys
from pathlib import Path
import ratchet
folder = Path(sys.argv[1])
found = ratchet.sweep(str(folder / "toy.py"), folder / "space.yaml", "score", trials=3, store=Path(sys.argv[2]),
                      options={"stopping": "none"})
print(json.dumps({"settings": dict(found.settings), "scores": list(found.table["score"]),
                  "first": found.table.index[0], "report": str(found.report)}))
"""
GRID = "fit.rate: grid(0.1, 0.7)\n"


def test_trials_share_steps(sweeps: Sweeps, shared_ray: tuple[str, ...]) -> None:
    """Takes half a minute: three trials under Ray Tune, and two commands that find everything cached."""
    status, output = sweeps.sweep(GRID, "--stopping", "none", *shared_ray, trials=3)
    assert status == 0, output
    assert sweeps.done().count("mine") == 1, "one mining, not three"
    assert [trial["settings"].get("fit.rate") for trial in sweeps.trials()] == [None, "0.1", "0.7"]
    assert [trial["value"] for trial in sweeps.trials()] == pytest.approx([1.5, 0.3, 2.1])
    assert "winner.yaml" in output
    folder = sweeps.folder_of_sweep()
    assert "trial 3 (winner) (a high rate)" in (folder / "report.md").read_text()
    # The winner's file does what it says, and finds everything made.
    status, again = sweeps.run("--settings", str(folder / "winner.yaml"))
    assert "2.1000" in again, again
    # So does the same sweep, given again from Python, in a process of its own: that of the tests may have Ray already.
    done = subprocess.run(
        [sys.executable, "-c", FROM_PYTHON, str(sweeps.folder), str(sweeps.store)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["settings"] == {"fit.rate": "0.7"}
    assert found["scores"] == pytest.approx([2.1, 1.5, 0.3])
    assert found["first"] == "trial 3 (winner) (a high rate)"
    assert Path(found["report"]).is_file()
    assert len(sweeps.done()) == 1 + 3 * 3


@pytest.mark.soak
def test_failed_trial_is_shown_with_its_reason(sweeps: Sweeps) -> None:
    """Takes half a minute: four trials under Ray Tune."""
    status, output = sweeps.sweep(
        "fit.rate: grid(0.1, 0.7, 0.3)\nfit.fault: 0.6\n", "--stopping", "none"
    )
    assert status == 0, output
    assert [trial["status"] for trial in sweeps.trials()] == [
        "finished",
        "finished",
        "failed",
        "finished",
    ]
    assert "fit.rate: 0.7 given; expected at most 0.6; lower it" in output


@pytest.mark.soak
def test_unplaceable_sweep_is_refused(sweeps: Sweeps) -> None:
    status, output = sweeps.sweep("fit.rate: grid(0.1, 0.7)\nfit.workers: 40\nfit.cpus: 1000\n")
    assert status == 2, output
    assert "40 workers of 1000 CPUs" in output
    assert "at most the 0 that fit" in output
    assert not sweeps.done()


@pytest.mark.soak
def test_trial_whose_process_cannot_start_is_shown_as_failed(sweeps: Sweeps) -> None:
    """The processes of trials import the recipe before a trial starts, and here that fails in them only."""
    recipe = sweeps.folder / "toy.py"
    recipe.write_text(
        recipe.read_text()
        + "\nimport sys\n"
        + "if 'default_worker.py' in ' '.join(sys.argv):\n"
        + "    raise OSError('no recipe here')\n"
    )
    status, output = sweeps.sweep(GRID, "--stopping", "none", trials=3)
    assert status != 0
    assert "its process was lost: OSError: no recipe here" in output
    assert {trial["status"] for trial in sweeps.trials()} == {"failed"}
    assert "Traceback" not in output
