"""The trial log: the folder `sweeps/<id>/` of a sweep, from which an interrupted sweep continues.

    about.json           command and inputs
    events.jsonl         `started` and `ended` events of the trials; append-only
    trials/<digest>/     the runs of a trial: a run log per seed
    report.html, .md     and winner.yaml, if a trial finished

The sweep's id is a digest of the search options and of everything that the values of trials depend on: recipe,
settings, space, metric, code of the jobs, data. The number of trials is left out: with more trials, a sweep continues.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ratchet.orchestrator.atomic_file import make_folder
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store


@dataclass(frozen=True)
class Trial:
    """A trial and its result."""

    settings: Mapping[str, str]
    status: str = "unfinished"
    """`finished`, `stopped` (early stopping), `failed`, or `unfinished`."""
    value: float | None = None
    """Mean objective over the seeds; for a stopped trial, the objective at its last checkpoint."""
    values: Sequence[float] = ()
    """Objective per seed."""
    curve: Sequence[float] = ()
    """Objective of the first seed after each checkpoint."""
    reason: str = ""
    """Why it failed."""
    seconds: float = field(default=0.0, compare=False)
    """Wall-clock seconds; 0 if it has not ended."""

    @property
    def key(self) -> str:
        return compute_key(self.settings)


def compute_key(settings: Mapping[str, str]) -> str:
    """Return the key of a trial: a digest of its settings."""
    return digest(dict(settings))[:12]


class TrialLog:
    """The log of a sweep. Trials are numbered in the order in which they were first started."""

    def __init__(self, store: Store, recipe: str, document: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """document: its digest is part of the sweep's id. about: information for users; each command replaces it."""
        name = f"sweeps/{recipe}-{digest(dict(document))[:12]}"
        store.pull(name)
        self.run_log = RunLog(store.local(name))
        self.folder: Path = self.run_log.folder
        make_folder(self.folder)
        before = self.run_log.read("about.json") or {"started": time.time()}
        self.started: float = before["started"]
        self.run_log.write("about.json", {"recipe": recipe, "started": self.started, **about})
        self.trials: dict[str, Trial] = {}
        for event in self.run_log.events():
            if event["event"] == "started":
                self.trials.setdefault(compute_key(event["settings"]), Trial(event["settings"]))
            elif event["event"] == "ended":
                trial = Trial(**event["trial"])
                self.trials[trial.key] = trial

    @property
    def id(self) -> str:
        return self.folder.name

    def get_number(self, settings: Mapping[str, str]) -> int:
        """Return the number of a trial, from 1."""
        return list(self.trials).index(compute_key(settings)) + 1

    def record_start(self, settings: Mapping[str, str]) -> None:
        if compute_key(settings) not in self.trials:
            self.trials[compute_key(settings)] = Trial(settings)
            self.run_log.event("started", settings=dict(settings))

    def record_end(self, trial: Trial) -> None:
        """Record the result of a trial, unless it is recorded already."""
        if self.trials.get(trial.key) != trial:
            self.trials[trial.key] = trial
            self.run_log.event("ended", trial=asdict(trial))

    def select_settled(self) -> dict[str, Trial]:
        """Return the finished and stopped trials by key. Failed ones are tried again."""
        found: dict[str, Trial] = {}
        for key, trial in self.trials.items():
            if trial.status in ("finished", "stopped"):
                found[key] = trial
        return found

    def list_runs(self, trial: Trial) -> list[RunLog]:
        """Return the run logs of a trial, one per seed."""
        found: list[RunLog] = []
        for folder in sorted((self.folder / "trials" / trial.key).glob("seed-*")):
            found.append(RunLog(folder))
        return found
