"""What `gc` keeps: the steps and objects that runs, sweeps, promotions and running attempts name.

Kept are the steps in the plans of the newest finished runs and all runs after the oldest of these, of the newest
sweeps, of pinned runs and sweeps, and of runs whose driver may be running. For runs whose driver may be running, the
objects in the plan are kept too: they are the inputs of running steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.errors import DamagedError
from ratchet.orchestrator.run_log import RunLog, list_all_runs, list_sweeps
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import is_gone, list_open_attempts
from ratchet.orchestrator.store.open_runs import list_open_runs


@dataclass
class Kept:
    """What must not be removed."""

    steps: set[str] = field(default_factory=set)
    """Step ids."""
    objects: set[str] = field(default_factory=set)
    """Addresses of further objects, besides those that kept steps point to."""
    unknown: list[str] = field(default_factory=list)
    """Reasons why the steps of some kept run are unknown. If there is any, all steps are kept."""

    def keeps(self, step_id: str) -> bool:
        return bool(self.unknown) or step_id in self.steps

    def add_plan(self, run_log: RunLog, with_objects: bool) -> None:
        """Keep the steps in the plan of a run and, if `with_objects`, their objects."""
        try:
            steps = run_log.steps()
        except DamagedError:
            self.unknown.append(
                f"{run_log.folder}: its plan cannot be read; all steps are kept, since those of this run are unknown;"
                " remove the folder if the run is not needed"
            )
            return
        self.steps |= {step["step_id"] for step in steps if step["step_id"]}
        if with_objects:
            self.objects |= {step["object"] for step in steps if step.get("object")}


def find_kept(store: Store, keep: int) -> Kept:
    """Find what must not be removed. keep: number of finished runs, and of sweeps, to keep."""
    kept = Kept()
    _add_open_runs(store, kept)
    for run_log in _select_runs(store, keep):
        kept.add_plan(run_log, with_objects=False)
    started = 0
    for sweep in list_sweeps(store):
        if started < keep or _is_pinned(sweep.folder):
            for trial in (trials := _list_trials(sweep.folder)):
                kept.add_plan(trial, with_objects=False)
            started += bool(trials)  # a sweep whose cluster did not answer has no trials
    _add_promoted(store, kept)
    # Open attempts: a step that is in no kept plan is kept while a process works on it.
    for attempt in list_open_attempts(store):
        if attempt.owner is None or not is_gone(attempt.owner):
            # Even without a heartbeat for a day: the owner may have been suspended right before its commit.
            if attempt.object:
                kept.objects |= {attempt.object}
            if attempt.owner and not is_gone({**attempt.owner, "at": attempt.at}):
                kept.steps |= {attempt.step_id}
    return kept


def _add_open_runs(store: Store, kept: Kept) -> None:
    if open_runs := list_open_runs(store):
        store.pull("runs")
        store.pull("sweeps")
    for mark in open_runs:
        where = f"process {mark['pid']} on {mark['host']}"
        if not mark["run"]:
            kept.unknown.append(f"{where} is starting a run; until it has a plan all steps are kept")
            continue
        run_log = RunLog(store.local(*mark["run"].split("/")))
        if mark["run"].startswith("sweeps/") and mark["run"].count("/") == 1:
            plans = _list_trials(run_log.folder)
        elif (run_log.folder / "plan.json").exists():
            plans = [run_log]
        else:
            plans = []
            kept.unknown.append(f"{where} is starting run {run_log.run_id}; until it has a plan all steps are kept")
        for plan in plans:
            kept.add_plan(plan, with_objects=True)


def _select_runs(store: Store, keep: int) -> Iterator[RunLog]:
    """Yield the newest `keep` finished runs, all runs after the oldest of these, and pinned runs.

    Runs that failed, were interrupted or were killed do not count towards `keep`: their commands continue them.
    """
    finished = 0
    for run_log in list_all_runs(store):
        if finished < keep or _is_pinned(run_log.folder):
            yield run_log
        if finished < keep:
            finished += run_log.find_end() == "finished"


def _add_promoted(store: Store, kept: Kept) -> None:
    store.pull("promoted")
    for path in store.local("promoted").glob("[!.]*.json"):
        try:
            promoted = json.loads(path.read_text())
            kept.steps.add(promoted["step_id"])
            kept.objects.add(promoted.get("object", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            kept.unknown.append(f"{path}: not a promotion; expected JSON with a step_id; promote it again or remove it")


def _is_pinned(folder: Path) -> bool:
    return (folder / "pinned").exists()


def _list_trials(folder: Path) -> list[RunLog]:
    found: list[RunLog] = []
    for path in folder.glob("trials/*/*"):
        if path.is_dir():
            found.append(RunLog(path))
    return found
