"""The Python API, with the functions of the command line: `ratchet.run("retriever", data="pairs.jsonl")`."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import RunError
from ratchet.orchestrator import recipe, run_models
from ratchet.orchestrator.execution.command import run_recipe
from ratchet.orchestrator.job_interface.settings import expect_one_of, write_lines
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.reporting import report_json
from ratchet.orchestrator.reporting.run_data import StepReport
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.run_models import RunModel
from ratchet.orchestrator.store import Store

if TYPE_CHECKING:
    import pandas as pd

    from ratchet.orchestrator.sweeps.command import Sweep


@dataclass(frozen=True)
class StepResult:
    """A step of a run that has ended: its metrics and the folder of its result."""

    store: Store
    data: StepReport

    @property
    def metrics(self) -> Mapping[str, float | int | str]:
        return self.data.metrics

    @cached_property
    def path(self) -> Path:
        """The folder of the result. The files are verified, and first downloaded if they are in a bucket. Raises
        RunError if the step has no result."""
        commit = self.store.lookup(self.data.step_id) if self.data.step_id else None
        if commit is None:
            raise RunError(f"step {self.data.name}: no result; expected one; run the recipe again")
        return self.store.path(commit.manifest, full=True)


class Steps(dict[str, StepResult]):
    """The steps of a run by name."""

    def __missing__(self, name: str) -> StepResult:
        raise KeyError(f"step {name}: {expect_one_of(self, name)}")


class Run:
    """A run that has ended: its table, models, steps and report."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder
        data = report_json.read(RunLog(folder))
        assert data is not None  # the run has ended
        self.data = data
        self.steps = Steps({step.name: StepResult(store, step) for step in data.steps})

    def __repr__(self) -> str:
        return f"<Run {self.run_id}: {self.status}>"

    @property
    def run_id(self) -> str:
        return self.data.run_id

    @property
    def status(self) -> str:
        """finished, failed or interrupted."""
        return self.data.status

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.folder / "report.html"

    @property
    def table(self) -> "pd.DataFrame":
        """The final table, indexed by label. A column `NAME ±` follows each column with intervals or deviations."""
        import pandas as pd

        rows: dict[str, dict[str, float | None]] = {}
        for label, row in self.data.rows.items():
            rows[label] = {}
            for name, value in row.items():
                rows[label][name] = None if value is None else float(value)
                deviation = getattr(value, "deviation", None)
                if deviation is not None:
                    rows[label][f"{name} ±"] = deviation
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def models(self) -> list[RunModel]:
        """The models in the rows of the table, then the other models that the run ended with."""
        return run_models.read_models(self.store, RunLog(self.folder))

    @property
    def best(self) -> Path:
        """The folder of the model that the run ended with. Raises InputError if the run made no model."""
        return run_models.find_model(self.store, self.run_id).locate(self.store)


def run(
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
    seeds: int = 1,
    address: str | None = None,
    check: bool = True,
    **parameters: Any,
) -> Run:
    """Run a recipe, or continue a run, and print its progress and its table.

    name: name of the recipe, or path of its file. parameters: parameters of the recipe. settings: settings of steps and
    jobs, such as {"finetune_embedder.epochs": 2}. store, seeds, address: as the options of `ratchet run`. check: raise
    RunError if a step fails or the run is interrupted; results are kept, and the same call continues the run. Raises
    RatchetError for wrong input."""
    lines = write_lines({**parameters, **(settings or {})})
    opened = Store.open(find_store(store))
    argv = ["ratchet", "run", name, *(part for line in lines for part in ("--set", line))]
    if seeds > 1:
        argv += ["--seeds", str(seeds)]
    done = run_recipe(name, recipe.Settings.read(lines, seeds), opened, argv, address=address)
    if check and done.word != "finished":
        failures = "; ".join(f"{step}: {reason}" for step, reason in done.failures.items())
        raise RunError(
            f"run {done.run_log.run_id} {done.word}{f' ({failures})' if failures else ''}; expected all steps done;"
            f" correct it and give the same call again, which continues: {shlex.join(argv)}"
        )
    return Run(opened, done.run_log.folder)


def sweep(
    name: str,
    space: str | Path,
    metric: str,
    *,
    trials: int = 16,
    settings: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> "Sweep":
    """Search for good settings of a recipe, or continue a search, and print its progress and its table.

    space: YAML file of the search space. metric: the metric to optimize, such as map@25. options: further options of
    `ratchet sweep`, such as {"seeds": 3, "stopping": "none"}. name, settings, store, parameters: as for `run`. The
    same call continues an interrupted sweep. Raises RatchetError for wrong input."""
    from ratchet.orchestrator.cli.parser import parse
    from ratchet.orchestrator.sweeps.command import run_sweep

    lines = write_lines({**parameters, **(settings or {})})
    given = {
        "space": space,
        "metric": metric,
        "trials": trials,
        "store": find_store(store),
        **(options or {}),
    }
    argv = ["sweep", name, *(part for line in lines for part in ("--set", line))]
    argv += [
        part for key, value in given.items() for part in (f"--{key.replace('_', '-')}", str(value))
    ]
    return run_sweep(parse(argv), lines, ["ratchet", *argv])


def plan(
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
    store: str | Path | None = None,
    seeds: int = 1,
    **parameters: Any,
) -> dict[str, str]:
    """Return step name -> `done`, `to run` or `open` (see `ratchet plan --help`). Nothing is started. Raises
    RatchetError for wrong input."""
    opened = Store.view(find_store(store), missing_ok=True)
    given = recipe.Settings.read(write_lines({**parameters, **(settings or {})}), seeds)
    made = Plan(recipe.build(recipe.find(name), given, opened)[0], opened)
    made.check()
    return {step: planned.state for step, planned in made.steps.items()}


def list_models(run: str = "", *, store: str | Path | None = None) -> list[RunModel]:
    """Return the models of the runs whose ids begin with `run` (default: all runs), newest run first."""
    return list(run_models.list_models(Store.view(find_store(store)), run))


def find_store(given: str | Path | None) -> str | Path:
    """Return the given store, else the environment variable RATCHET_STORE, else `.ratchet`."""
    return given or os.environ.get("RATCHET_STORE", ".ratchet")
