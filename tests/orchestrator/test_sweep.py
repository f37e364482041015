"""Sweeps through the command, on real Ray and Ray Tune: sharing, stopping, failures, kills. The jobs are small, and
real; the last test trains MiniLM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

RECIPE = '''
import os, time
from dataclasses import dataclass
from pathlib import Path
from jobs.job import BadInput, Job, Progress, Result
from orchestrator.step import Row, Summary, step

TRACE = Path(os.environ["TOY_TRACE"])

def trace(text):
    with TRACE.open("a") as file:
        file.write(text + "\\n")

@dataclass(frozen=True)
class Mine:
    window: int = 10

@dataclass(frozen=True)
class Fit:
    rate: float = 0.5
    epochs: int = 3
    seconds: float = 0.0
    fault: float = 9.0
    seed: int = 0
    metric: str = "score"

@dataclass(frozen=True)
class Inputs:
    before: Path | None = None

def mine(context, config, inputs):
    trace("mine")
    time.sleep(0.5)
    (context.out / "mined.txt").write_text(str(config.window))
    return Result({"rows": config.window})

def fit(context, config, inputs):
    """Better at every epoch, the more so the nearer the rate is to 1; a seed moves it a little."""
    if config.rate > config.fault:
        raise BadInput(f"fit.rate: {config.rate} given; expected at most {config.fault}; lower it")
    first = int((context.earlier / "epochs").read_text()) if context.earlier else 0
    scores = tuple(round(config.rate * (e + 1) + 0.01 * config.seed, 6) for e in range(first))
    for epoch in range(first, config.epochs):
        time.sleep(config.seconds)
        trace(f"epoch {config.rate} {config.seed} {epoch + 1}")
        scores += (round(config.rate * (epoch + 1) + 0.01 * config.seed, 6),)
        context.progress(Progress(epoch + 1, config.epochs, "epochs", evaluations=scores))
    if context.state is not None:
        context.state.mkdir(exist_ok=True)
        (context.state / "epochs").write_text(str(config.epochs))
    (context.out / "model.txt").write_text(str(scores))
    rows = [{"epoch": "start", "valid score": 0.0}]
    rows += [{"epoch": str(n), "valid score": score} for n, score in enumerate(scores, 1)]
    return Result({"valid score": scores[-1]}, {"epochs": rows})

MINE = Job("mine", version=1, config=Mine, inputs=Inputs, run=mine)
FIT = Job("fit", version=1, config=Fit, inputs=Inputs, run=fit, longer=("epochs", lambda config: ""))

def toy(*, seconds: float = 0.0) -> Summary:
    """A step that all trials share, and one that learns."""
    fitted = step("fit", FIT, before=step("mine", MINE), seconds=seconds)
    return Summary([Row("fitted", {"score": fitted.metric("valid score")}, [fitted])])
'''


class Toy:
    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.trace = folder, folder / "store", folder / "trace"
        (folder / "toy.py").write_text(RECIPE)

    def start(self, space: str, *options: str, trials: int = 4) -> subprocess.Popen[str]:
        path = self.folder / "space.yaml"
        path.write_text(space)
        command = [sys.executable, "-m", "orchestrator", "sweep", str(self.folder / "toy.py"), "--space", str(path)]
        command += ["--metric", "score", "--trials", str(trials), "--store", str(self.store)]
        environment = {**os.environ, "TOY_TRACE": str(self.trace), "PYTHONPATH": str(ROOT)}
        environment.pop("RAY_ADDRESS", None)
        return subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, space: str, *options: str, trials: int = 4) -> tuple[int, str]:
        process = self.start(space, *options, trials=trials)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def traced(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    def trials(self) -> list[dict[str, Any]]:
        """What the ledger says of those that ended."""
        (file,) = self.store.glob("sweeps/*/events.jsonl")
        events = [json.loads(line) for line in file.read_text().splitlines()]
        return [event["trial"] for event in events if event["event"] == "ended"]

    def folder_of_sweep(self) -> Path:
        (folder,) = self.store.glob("sweeps/toy-*")
        return folder


@pytest.fixture
def toy(tmp_path: Path) -> Iterator[Toy]:
    made = Toy(tmp_path)
    yield made
    subprocess.run(["pkill", "-9", "-f", str(tmp_path)], check=False)


GRID = "fit.rate: grid(0.1, 0.7, 0.3)\n"


def test_trials_share_what_they_have_in_common_and_the_best_one_wins(toy: Toy) -> None:
    status, output = toy.run(GRID, "--stopping", "none", "--promote", "best")
    assert status == 0, output
    assert toy.traced().count("mine") == 1, "one mining, not four"
    assert [trial["settings"].get("fit.rate") for trial in toy.trials()] == [None, "0.1", "0.7", "0.3"]
    assert [trial["value"] for trial in toy.trials()] == pytest.approx([1.5, 0.3, 2.1, 0.9])
    assert "5 steps computed" in output
    assert "run separately: 8 steps" in output
    assert "--set fit.rate=0.7" in output
    assert (toy.store / "promoted" / "best" / "model.txt").read_text() == "(0.7, 1.4, 2.1)"
    folder = toy.folder_of_sweep()
    assert "trial 3" in (folder / "report.md").read_text()
    # The winner's file does what it says, and finds everything made.
    command = [sys.executable, "-m", "orchestrator", "run", str(toy.folder / "toy.py"), "--store", str(toy.store)]
    environment = {**os.environ, "TOY_TRACE": str(toy.trace), "PYTHONPATH": str(ROOT)}
    settings = ["--settings", str(folder / "winner.yaml")]
    done = subprocess.run([*command, *settings], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "2.1000" in done.stdout, done.stdout + done.stderr
    assert len(toy.traced()) == 1 + 4 * 3
    # All known: the same command ends at once, without Ray, and says the same.
    started = time.monotonic()
    status, again = toy.run(GRID, "--stopping", "none", "--promote", "best")
    assert (status, time.monotonic() - started < 8) == (0, True), again
    assert again.splitlines()[:5] == output.splitlines()[-len(again.splitlines()) :][:5]


@pytest.mark.soak
def test_bad_trials_are_stopped_and_more_trials_are_more_of_the_same(toy: Toy) -> None:
    grid = "fit.rate: grid(0.7, 0.1, 0.2, 0.3, 0.25)\nfit.seconds: 0.6\n"
    status, output = toy.run(grid, "--at-once", "1", "--reduction", "2", trials=4)
    assert status == 0, output
    first = {json.dumps(trial["settings"]): trial for trial in toy.trials()}
    assert {trial["status"] for trial in first.values()} == {"finished", "stopped"}
    stopped = [trial for trial in first.values() if trial["status"] == "stopped"]
    assert all(len(trial["curve"]) < 3 for trial in stopped)
    assert "stopped" in output
    lines = len(toy.traced())
    status, output = toy.run(grid, "--at-once", "1", "--reduction", "2", trials=6)
    assert status == 0, output
    assert {json.dumps(t["settings"]): t for t in toy.trials()[: len(first)]} == first, "what was found stays"
    assert len(toy.trials()) == 6
    assert not any("epoch 0.7" in line for line in toy.traced()[lines:]), "finished trials are not run again"


@pytest.mark.slow
def test_a_failed_trial_is_shown_with_its_reason_and_ends_nothing(toy: Toy) -> None:
    status, output = toy.run("fit.rate: grid(0.1, 0.7, 0.3)\nfit.fault: 0.6\n", "--stopping", "none")
    assert status == 0, output
    assert [trial["status"] for trial in toy.trials()] == ["finished", "finished", "failed", "finished"]
    assert "fit.rate: 0.7 given; expected at most 0.6; lower it" in output


@pytest.mark.slow
def test_more_epochs_go_on_from_fewer(toy: Toy) -> None:
    status, output = toy.run("fit.epochs: grid(1, 2, 4)\n", "--at-once", "1", "--stopping", "none")
    assert status == 0, output
    assert sorted(toy.traced()[1:]) == [f"epoch 0.5 0 {n}" for n in (1, 1, 2, 2, 3, 4)], (
        "the defaults' three and the first's one begin, the second epoch goes on from one, the fourth from three"
    )
    assert [trial["value"] for trial in toy.trials()] == pytest.approx([1.5, 0.5, 1.0, 2.0])


@pytest.mark.soak
def test_seeds_give_a_mean_and_a_deviation(toy: Toy) -> None:
    status, output = toy.run("fit.rate: grid(0.7)\n", "--seeds", "3")
    assert status == 0, output
    assert [trial["values"] for trial in toy.trials()] == [[1.5, 1.51, 1.52], [2.1, 2.11, 2.12]]
    assert "more than noise" in output


@pytest.mark.soak
def test_optuna_learns_from_what_it_tried(toy: Toy) -> None:
    status, output = toy.run("fit.rate: loguniform(1e-3, 1)\n", "--searcher", "optuna", "--stopping", "none", trials=5)
    assert status == 0, output
    assert len(toy.trials()) == 5
    before = toy.trials()
    status, output = toy.run("fit.rate: loguniform(1e-3, 1)\n", "--searcher", "optuna", "--stopping", "none", trials=7)
    assert status == 0, output
    assert toy.trials()[:5] == before
    assert len(toy.trials()) == 7


@pytest.mark.soak
def test_a_killed_sweep_goes_on(toy: Toy) -> None:
    grid = "fit.rate: grid(0.1, 0.7, 0.3)\nfit.seconds: 1.5\n"
    process = toy.start(grid, "--stopping", "none", "--at-once", "1")
    deadline = time.monotonic() + 120
    while "epoch 0.1 0 2" not in toy.traced():
        assert time.monotonic() < deadline, "the second trial was never begun"
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(toy.trials()) == 1
    status, output = toy.run(grid, "--stopping", "none", "--at-once", "1")
    assert status == 0, output
    assert [trial["value"] for trial in toy.trials()] == pytest.approx([1.5, 0.3, 2.1, 0.9])
    assert toy.traced().count("mine") == 1
    assert toy.traced().count("epoch 0.5 0 1") == 1, "the trial that had ended told its ledger's values"


@pytest.mark.soak
def test_an_interrupted_sweep_stops_its_trials_and_goes_on(toy: Toy) -> None:
    grid = "fit.rate: grid(0.1, 0.7)\nfit.seconds: 3\n"
    process = toy.start(grid, "--stopping", "none", "--at-once", "1", trials=3)
    deadline = time.monotonic() + 120
    while "epoch 0.5 0 1" not in toy.traced():
        assert time.monotonic() < deadline, "the first trial was never begun"
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "give the same command again" in output
    assert toy.trials() == []
    status, output = toy.run(grid, "--stopping", "none", "--at-once", "1", trials=3)
    assert status == 0, output
    assert len(toy.trials()) == 3


def test_what_the_cluster_can_never_place_is_refused_with_the_arithmetic(toy: Toy) -> None:
    status, output = toy.run("fit.rate: grid(0.1, 0.7)\nfit.workers: 40\nfit.cpus: 1000\n")
    assert status == 2, output
    assert "40 workers of 1000 CPUs" in output
    assert "at most the 0 that fit" in output
    assert not toy.traced()


REAL = """
import sys, time, ray
from orchestrator.cli import main

ray.init(address="local", num_cpus=2, log_to_driver=False)
status = main(sys.argv[1:])
for _ in range(60):
    left = [group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"]
    if not left and ray.available_resources().get("CPU") == 2:
        break
    time.sleep(1)
print("left over:", len(left), "CPUs free:", ray.available_resources().get("CPU"))
sys.exit(status)
"""


@pytest.mark.soak
def test_real_trials_on_a_cluster_that_holds_one_end_and_leave_nothing(tmp_path: Path) -> None:
    """Two trials at once where one fits: Tune's and Train's placement groups must not wait for each other. One of the
    trainings is stopped at its first checkpoint, in the middle of Ray Train."""
    space = tmp_path / "space.yaml"
    space.write_text("iter0/finetune_embedder.learning_rate: grid(1e-9, 2e-9)\n")
    command = [sys.executable, "-c", REAL, "sweep", "quickstart", "--space", str(space), "--metric", "map@25"]
    command += ["--trials", "3", "--at-once", "2", "--reduction", "2", "--store", str(tmp_path / "store")]
    for line in ("questions=80", "iterations=1", "reranker=false", "finetune_embedder.allow_regression=true"):
        command += ["--set", line]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=550, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left over: 0 CPUs free: 2.0" in done.stdout
    (file,) = (tmp_path / "store").glob("sweeps/*/events.jsonl")
    events = [json.loads(line) for line in file.read_text().splitlines()]
    ended = [event["trial"] for event in events if event["event"] == "ended"]
    trials = {trial["settings"].get("iter0/finetune_embedder.learning_rate"): trial for trial in ended}
    assert trials[None]["status"] == "finished"
    assert "stopped" in {trial["status"] for trial in trials.values()}
    assert trials[None]["value"] > max(trials["1e-9"]["value"], trials["2e-9"]["value"])
