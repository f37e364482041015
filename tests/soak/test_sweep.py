"""Sweeps that are stopped early, killed and interrupted, with several seeds; one trains MiniLM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import ROOT
from toy_sweeps import Sweeps
from waiting import wait_for


@pytest.fixture
def sweeps(tmp_path: Path) -> Iterator[Sweeps]:
    made = Sweeps(tmp_path)
    yield made
    subprocess.run(["pkill", "-9", "-f", str(tmp_path)], check=False)


def test_bad_trials_are_stopped(sweeps: Sweeps) -> None:
    """Takes half a minute or more: Ray starts twice, and trials last for seconds so that they can be stopped."""
    grid = "fit.rate: grid(0.7, 0.1, 0.2, 0.3, 0.25)\nfit.seconds: 0.6\n"
    status, output = sweeps.sweep(
        grid, "--max-concurrent", "1", "--reduction-factor", "2", trials=4
    )
    assert status == 0, output
    assert {trial["status"] for trial in sweeps.trials()} == {"finished", "stopped"}
    stopped = [trial for trial in sweeps.trials() if trial["status"] == "stopped"]
    assert all(len(trial["curve"]) < 3 for trial in stopped)
    assert "stopped" in output
    lines = len(sweeps.done())
    status, output = sweeps.sweep(
        grid, "--max-concurrent", "1", "--reduction-factor", "2", trials=6
    )
    assert status == 0, output
    assert len(sweeps.trials()) == 6
    assert not any("epoch 0.7" in line for line in sweeps.done()[lines:]), (
        "finished trials are not run again"
    )


def test_seeds_give_a_mean_and_a_deviation(sweeps: Sweeps) -> None:
    """Takes about half a minute: a sweep of six trials under Ray Tune."""
    status, output = sweeps.sweep("fit.rate: grid(0.7)\n", "--seeds", "3")
    assert status == 0, output
    assert [trial["values"] for trial in sweeps.trials()] == [[1.5, 1.51, 1.52], [2.1, 2.11, 2.12]]
    assert "more than noise" in output


def test_a_killed_sweep_goes_on(sweeps: Sweeps) -> None:
    """Takes about a minute: Ray starts twice, and trials last for seconds so that one can be killed."""
    grid = "fit.rate: grid(0.1, 0.7, 0.3)\nfit.seconds: 1.5\n"
    process = sweeps.start_sweep(grid, "--stopping", "none", "--max-concurrent", "1")
    wait_for(lambda: "epoch 0.1 0 2" in sweeps.done(), "the second trial was never started")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(sweeps.trials()) == 1
    status, output = sweeps.sweep(grid, "--stopping", "none", "--max-concurrent", "1")
    assert status == 0, output
    assert [trial["value"] for trial in sweeps.trials()] == pytest.approx([1.5, 0.3, 2.1, 0.9])
    assert sweeps.done().count("mine") == 1
    assert sweeps.done().count("epoch 0.5 0 1") == 1, "the ended trial cost nothing"


def test_an_interrupted_sweep_stops_its_trials_and_goes_on(sweeps: Sweeps) -> None:
    """Takes about a minute: Ray starts twice, and trials last for seconds."""
    grid = "fit.rate: grid(0.1, 0.7)\nfit.seconds: 3\n"
    process = sweeps.start_sweep(grid, "--stopping", "none", "--max-concurrent", "1", trials=3)
    wait_for(lambda: "epoch 0.5 0 1" in sweeps.done(), "the first trial was never started")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "give the same command again" in output
    assert sweeps.trials() == []
    status, output = sweeps.sweep(grid, "--stopping", "none", "--max-concurrent", "1", trials=3)
    assert status == 0, output
    assert len(sweeps.trials()) == 3


REAL = """
import os, subprocess, sys, time, ray

address = ray.init(address="local", num_cpus=2, log_to_driver=False).address_info["gcs_address"]
command = [sys.executable, "-m", "orchestrator", *sys.argv[1:]]
status = subprocess.run(command, env={**os.environ, "RAY_ADDRESS": address}).returncode
for _ in range(60):
    left = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
    if not left and ray.available_resources().get("CPU") == 2:
        break
    time.sleep(1)
print("left over:", len(left), "CPUs free:", ray.available_resources().get("CPU"))
sys.exit(status)
"""


def test_trials_on_a_small_cluster_end(tmp_path: Path) -> None:
    """Two trials at once where one fits: Tune's and Train's placement groups must not wait for each other. One of the
    trainings is stopped at its first checkpoint, in the middle of Ray Train."""
    space = tmp_path / "space.yaml"
    space.write_text("iter0/finetune_embedder.learning_rate: grid(1e-9, 2e-9)\n")
    command = [
        sys.executable,
        "-c",
        REAL,
        "sweep",
        "quickstart",
        "--space",
        str(space),
        "--metric",
        "map@25",
    ]
    command += [
        "--trials",
        "3",
        "--max-concurrent",
        "2",
        "--reduction-factor",
        "2",
        "--store",
        str(tmp_path / "store"),
    ]
    for line in (
        "questions=80",
        "iterations=1",
        "reranker=false",
        "finetune_embedder.allow_regression=true",
    ):
        command += ["--set", line]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left over: 0 CPUs free: 2.0" in done.stdout
    (file,) = (tmp_path / "store").glob("sweeps/*/trials.json")
    ended = json.loads(file.read_text())["trials"]
    trials = {
        trial["settings"].get("iter0/finetune_embedder.learning_rate"): trial for trial in ended
    }
    assert trials[None]["status"] == "finished"
    assert "stopped" in {trial["status"] for trial in trials.values()}
    assert trials[None]["value"] > max(trials["1e-9"]["value"], trials["2e-9"]["value"])
