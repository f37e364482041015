"""The overhead of a sweep, and the work that sharing steps saves.

    python -m benchmarks.orchestrator.sweep                                 # trials whose one step does nothing
    python -m benchmarks.orchestrator.sweep --part quickstart --trials 8    # lr and temperature on its data, minutes

overhead: the seconds between the end of a trial and the start of the next trial, and the seconds of a whole trial, in
`ratchet sweep`. They are compared with one such run by itself, which includes the start of Python and Ray.

quickstart: the number of steps and the seconds of the sweep, and of the same number of separate runs, computed from the
measured times of the same steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

RECIPE = '''
from dataclasses import dataclass
from pathlib import Path
from ratchet.orchestrator.job_interface import Job, Result
from ratchet.orchestrator.step import Row, Summary, step

@dataclass(frozen=True)
class Config:
    rate: float = 0.5
    metric: str = "score"

@dataclass(frozen=True)
class Inputs:
    before: Path | None = None

def run(context, config, inputs):
    (context.out / "model.txt").write_text(str(config.rate))
    return Result({"valid/score": config.rate})

JOB = Job("fit", version=1, config=Config, inputs=Inputs, run=run)

def empty() -> Summary:
    """A step that does nothing."""
    return Summary([Row("fit", {"score": step("fit", JOB).metric("valid/score")})])
'''
TRIED = """finetune_embedder.learning_rate: loguniform(2e-4, 5e-3)
finetune_embedder.temperature: loguniform(0.01, 0.1)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=["overhead", "quickstart"], default="overhead")
    parser.add_argument("--trials", type=int, default=12)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (overhead if given.part == "overhead" else quickstart)(Path(name), given.trials)


def ratchet(folder: Path, *arguments: str) -> float:
    """Runs the command; seconds. What it printed is in folder/log."""
    started = time.perf_counter()
    with (folder / "log").open("a") as log:
        command = [
            sys.executable,
            "-m",
            "orchestrator",
            *arguments,
            "--store",
            str(folder / "store"),
        ]
        subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=True)
    return time.perf_counter() - started


def overhead(folder: Path, trials: int) -> None:
    recipe, space = folder / "empty.py", folder / "space.yaml"
    recipe.write_text(RECIPE)
    space.write_text("fit.rate: uniform(0, 1)\n")
    options = [
        "--space",
        str(space),
        "--metric",
        "score",
        "--trials",
        str(trials),
        "--max-concurrent",
        "1",
    ]
    whole = ratchet(folder, "sweep", str(recipe), *options)
    (file,) = (folder / "store").glob("sweeps/*/trials.json")
    lives = [trial["seconds"] for trial in json.loads(file.read_text())["trials"]]
    alone = ratchet(folder, "run", str(recipe), "--set", "fit.rate=2.0")
    print(f"a sweep of {trials} trials, whole                     {whole:8.2f} s")
    print(f"a trial from start to end, all but the first {statistics.median(lives[1:]):7.2f} s")
    print(f"one such run by itself                      {alone:8.2f} s")


def quickstart(folder: Path, trials: int) -> None:
    space = folder / "space.yaml"
    space.write_text(TRIED)
    options = [
        "--space",
        str(space),
        "--metric",
        "map@25",
        "--trials",
        str(trials),
        "--stopping",
        "none",
    ]
    settings = ["--set", "iterations=1", "--set", "reranker=false"]
    whole = ratchet(folder, "sweep", "quickstart", *options, *settings)
    print((folder / "log").read_text())
    print(f"by the clock: {whole:.0f} s")


if __name__ == "__main__":
    main()
