"""A sweep over a recipe of two small steps, run by the command in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import toy_runs

RECIPE = (
    toy_runs.HEAD
    + '''
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
        raise InputError(f"fit.rate: {config.rate} given; expected at most {config.fault}; lower it")
    scores = ()
    for epoch in range(config.epochs):
        time.sleep(config.seconds)
        trace(f"epoch {config.rate} {config.seed} {epoch + 1}")
        scores += (round(config.rate * (epoch + 1) + 0.01 * config.seed, 6),)
        context.progress(Progress(epoch + 1, config.epochs, "epochs", evaluations=scores))
    (context.out / "model.txt").write_text(str(scores))
    rows = [{"epoch": "start", "valid/score": 0.0}]
    rows += [{"epoch": str(n), "valid/score": score} for n, score in enumerate(scores, 1)]
    return Result({"valid/score": scores[-1]}, {"epochs": rows}, note="a high rate" if config.rate > 0.6 else "")

MINE = Job("toy_mine", version=1, config=Mine, inputs=Inputs, run=mine)
FIT = Job("fit", version=1, config=Fit, inputs=Inputs, run=fit)

def toy(*, seconds: float = 0.0) -> Summary:
    """A step that all trials share, and one that learns."""
    fitted = step("fit", FIT, before=step("mine", MINE), seconds=seconds)
    return Summary([Row("fitted", {"score": fitted.metric("valid/score")}, [fitted])])
'''
)


class Sweeps(toy_runs.Toy):
    """A recipe to sweep over, with the store and the trace."""

    recipe = RECIPE

    def start_sweep(self, space: str, *options: str, trials: int = 4) -> subprocess.Popen[str]:
        path = self.folder / "space.yaml"
        path.write_text(space)
        return self.start_command(
            "sweep", "--space", str(path), "--metric", "score", "--trials", str(trials), *options
        )

    def sweep(self, space: str, *options: str, trials: int = 4) -> tuple[int, str]:
        process = self.start_sweep(space, *options, trials=trials)
        output, _ = process.communicate(timeout=300)
        return process.returncode, output

    def trials(self) -> list[dict[str, Any]]:
        """The trials of the last sweep that ended."""
        file = self.folder_of_sweep() / "trials.json"
        if not file.exists():
            return []
        found = json.loads(file.read_text())["trials"]
        return [trial for trial in found if trial["status"] != "unfinished"]

    def folder_of_sweep(self) -> Path:
        return max(self.store.glob("sweeps/*-toy-*"))
