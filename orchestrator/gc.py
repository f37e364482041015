"""Garbage collection: removes steps and objects that no kept run names and that are older than the grace period.

Kept are the steps in the plans of the newest finished runs and of all runs after the oldest of these, of the newest
sweeps, of pinned runs and sweeps, and of runs whose driver may be running. Of the last, the objects in
the plan are kept too: they are the inputs of running steps. Every object that a remaining step points to is kept, and
everything that was created or used within the grace period. If the steps of one of these runs are unknown, nothing is
removed. A run whose result was removed between its plan and its use computes it again.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.errors import DamagedError
from ratchet.orchestrator.job_interface.clean_output import print_clean
from ratchet.orchestrator.run_log import RunLog, list_all_runs
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.backend import Backend
from ratchet.orchestrator.store.lease import list_open_runs

THREADS = 16
"""Number of threads that read steps, chosen for shared disks and buckets with a latency of some milliseconds."""

MIN_GRACE = 60.0
"""Minimum grace period in seconds, larger than the difference of two machines' clocks."""


@dataclass(frozen=True)
class Garbage:
    """A step or an object that can be removed."""

    place: Backend
    kind: str
    """`steps`, `objects` or `sources`."""
    name: str
    """The step id, address, or first digits of the digest."""
    bytes: int
    before: float
    """It was last written or used before this time, in seconds since 1970."""

    def __str__(self) -> str:
        return f"{self.bytes / 1e6:10.1f} MB  {self.kind}/{self.name[:16]}  {self.place.where}"


@dataclass
class Kept:
    """What must not be removed."""

    steps: set[str] = field(default_factory=set)
    """Step ids."""
    objects: set[str] = field(default_factory=set)
    """Addresses of further objects, besides those that kept steps point to."""
    sources: bool = False
    """Whether to keep the copies of sources in a bucket, which running steps may need."""
    doubts: list[str] = field(default_factory=list)
    """Reasons why the steps of some kept run are unknown. If there is any, nothing is removed."""

    def add_plan(self, run_log: RunLog, *, with_objects: bool = False) -> None:
        """Keep the steps in the plan of a run and, if `with_objects`, their objects."""
        try:
            steps = run_log.steps()
        except DamagedError:
            self.doubts.append(
                f"{run_log.folder}: its plan cannot be read; nothing is removed, since the steps of this run are"
                " unknown; remove the folder if the run is not needed"
            )
            return
        for step in steps:
            self.steps.add(step["step_id"])
            if with_objects and step["object"]:
                self.objects.add(step["object"])


def find_garbage(store: Store, *, keep: int, grace: float) -> list[Garbage]:
    """Find garbage, and print why nothing can be removed if steps are unknown. keep: number of finished runs, and of
    sweeps, to keep. grace: grace period in seconds, at least MIN_GRACE. Steps come before objects."""
    before = time.time() - max(grace, MIN_GRACE)
    kept = _find_kept(store, keep)
    for doubt in kept.doubts:
        print_clean(doubt)
    if kept.doubts:
        return []
    garbage = _list_old(store, "steps", kept.steps, before)
    gone = set()
    for item in garbage:
        if item.place is store.backend:
            gone.add(item.name)
    stay = [step for step in store.list_names("steps") if step not in gone]

    def find_address(step_id: str) -> str:
        try:
            commit = store.lookup(step_id)
        except DamagedError:  # its end cannot be read, which a run reports
            return ""
        return commit.manifest if commit else ""

    with ThreadPoolExecutor(THREADS) as pool:
        in_use = kept.objects.union(pool.map(find_address, stay))
    garbage += _list_old(store, "objects", in_use, before)
    if store.backend.downloads and not kept.sources:
        for name, size, newest in store.backend.list_entries("sources", ()):
            if newest < before:
                garbage.append(Garbage(store.backend, "sources", name, size, before))
    return garbage


def remove_garbage(garbage: list[Garbage]) -> list[Garbage]:
    """Remove garbage that has not been used since it was found, and return what was removed. Safe to kill. What only
    another user can remove is named and stays: that user's `gc` removes it."""
    removed = []
    for item in garbage:
        try:
            if item.place.remove_entry(item.kind, item.name, item.before):
                removed.append(item)
        except PermissionError as error:
            print_clean(f"{item.kind}/{item.name[:16]} stays: {error.strerror or error}")
    return removed


def _list_old(store: Store, kind: str, kept: set[str], before: float) -> list[Garbage]:
    found = []
    for place in store.places:
        for name, size, newest in place.list_entries(kind, kept):
            if newest < before:
                found.append(Garbage(place, kind, name, size, before))
    return found


def _find_kept(store: Store, keep: int) -> Kept:
    """Find what must not be removed. keep: number of finished runs, and of sweeps, to keep."""
    kept = Kept()
    open_runs = list_open_runs(
        store
    )  # before the plans: a driver that begins later uses what is young or kept
    for run_log in _select_runs(store, keep):
        kept.add_plan(run_log)
    for number, sweep in enumerate(list_all_runs(store, "sweeps")):
        if number < keep or _is_pinned(sweep.folder):
            for trial in _list_trial_runs(sweep.folder):
                kept.add_plan(trial)
    kept.sources = bool(open_runs)
    for mark in open_runs:
        folder = store.local(*mark["run"].split("/"))
        if mark["run"].startswith("sweeps/") and mark["run"].count("/") == 1:
            for trial in _list_trial_runs(folder):
                kept.add_plan(trial, with_objects=True)
        elif mark["run"] and (folder / "plan.json").exists():
            kept.add_plan(RunLog(folder), with_objects=True)
        else:
            kept.doubts.append(
                f"process {mark['pid']} on {mark['host']} is starting a run; until it has a plan, nothing is removed"
            )
    return kept


def _select_runs(store: Store, keep: int) -> Iterator[RunLog]:
    """Yield the newest `keep` finished runs, all runs after the oldest of these, and pinned runs.

    Runs that failed, were interrupted or were killed do not count towards `keep`: their commands continue them.
    """
    finished = 0
    for run_log in list_all_runs(store):
        if finished < keep or _is_pinned(run_log.folder):
            yield run_log
        if finished < keep and run_log.find_end() == "finished":
            finished += 1


def _is_pinned(folder: Path) -> bool:
    return (folder / "pinned").exists()


def _list_trial_runs(folder: Path) -> list[RunLog]:
    return [RunLog(path) for path in folder.glob("trials/*/*")]
