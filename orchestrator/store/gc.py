"""Garbage collection: marks, waits for a grace period, deletes.

Kept are: every step named by the plan of a kept run (the newest runs, the trials of the newest sweeps, and runs whose
folder has a file `pinned`), every promoted step, every step with a running attempt, every object that a kept step
points to, and everything created or used within the grace period. Each folder is renamed first, checked again, and
renamed back if it was used in between. A renamed folder is missing for every process at once, so that no process reads
half of it. For a bucket see `bucket_gc`; the local copies are collected like results.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from ratchet.orchestrator.run_log import RunLog, list_run_logs, list_sweeps
from ratchet.orchestrator.store import Store, bucket_gc
from ratchet.orchestrator.store.backend import Garbage
from ratchet.orchestrator.store.lease import list_lease_holders
from ratchet.orchestrator.store.parallel import OnProgress, ignore_progress, map_parallel
from ratchet.orchestrator.store.read_only import remove_tree

THREADS = 16
"""For a shared disk: with a latency of 2 ms, twelve times as fast as one thread. On a local disk this many take up to
1.5 times as long as a few."""

_RENAMED = {".aside-": "moved aside as damaged", ".gone-": "half removed"}


def plan(store: Store, *, keep: int, grace: float, on_progress: OnProgress = ignore_progress) -> list[Garbage]:
    """Find garbage. keep: number of newest runs to keep. grace: anything created or used in so many seconds is kept."""
    before = time.time() - grace
    wanted = _wanted_steps(store, keep) | {
        step_id for step_id, owner in list_lease_holders(store) if not owner.endswith("gone")
    }
    steps, objects = list(_list_folders(store.local("steps"))), list(_list_folders(store.local("objects")))
    # With a bucket, steps of other machines have no local folder, but their objects may have local copies.
    in_use = _used_addresses(store, wanted - {step.name for step in steps}, "steps of others", on_progress)

    def of_step(step: Path) -> Iterator[Garbage]:
        if step.name not in wanted and (size := _size_if_old(step, before)) is not None:
            yield Garbage(f"steps/{step.name}", _why_renamed(step.name) or "a step that no kept run names", size)
            return
        commit = store.lookup(step.name)
        if commit is not None:
            in_use.add(commit.manifest)
        for inside in _list_folders(step):
            over = commit is not None and inside.name in ("staging", "work")
            why = _why_renamed(inside.name) or ("left over by attempts of a finished step" if over else "")
            if why and (size := _size_if_old(inside, before)) is not None:
                yield Garbage(f"steps/{step.name}/{inside.name}", why, size)

    def of_object(item: Path) -> Iterator[Garbage]:
        if item.name not in in_use and (size := _size_if_old(item, before)) is not None:
            yield Garbage(f"objects/{item.name}", _why_renamed(item.name) or "an object of no step", size)

    garbage = map_parallel(THREADS, of_step, steps, "steps", on_progress)
    garbage += map_parallel(THREADS, of_object, objects, "objects", on_progress)
    return garbage + bucket_gc.plan(store, wanted, before, on_progress)


def sweep(
    store: Store, garbage: Sequence[Garbage], *, grace: float, on_progress: OnProgress = ignore_progress
) -> list[Garbage]:
    """Remove garbage, except what was used since, and return what was removed. Safe to kill at any point."""
    before = time.time() - grace

    def take(item: Garbage) -> Iterator[tuple[Garbage, Path]]:
        return ((item, gone) for gone in _rename_away(store.local(item.key), before))

    def remove(taken: tuple[Garbage, Path]) -> Iterator[Garbage]:
        item, gone = taken
        with suppress(FileNotFoundError):  # another collection is running
            remove_tree(gone)
        yield item

    here = [item for item in garbage if not item.remote]
    objects = [item for item in here if item.key.startswith("objects/")]
    first = [item for item in here if not item.key.startswith("objects/")]
    taken = map_parallel(THREADS, take, first, "steps moved away", on_progress)
    steps = (step.name for step in _list_folders(store.local("steps")) if not step.name.startswith("."))
    in_use = _used_addresses(store, steps, "steps that stay", on_progress)
    objects = [item for item in objects if item.key.removeprefix("objects/") not in in_use]
    taken += map_parallel(THREADS, take, objects, "objects moved away", on_progress)
    removed = map_parallel(THREADS, remove, taken, "removed", on_progress)
    return removed + bucket_gc.sweep(store, [item for item in garbage if item.remote], before, on_progress)


def _why_renamed(name: str) -> str:
    """Return why a folder was renamed, from its new name; empty if it was not."""
    return next((why for start, why in _RENAMED.items() if name.startswith(start)), "")


def _rename_away(path: Path, before: float) -> Iterator[Path]:
    """Rename a folder and yield the new path; rename it back if it was used in the meantime."""
    gone = path.with_name(f".gone-{uuid.uuid4().hex}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return  # another collection is running
    if _size_if_old(gone, before) is not None or path.exists():
        yield gone
    else:
        with suppress(FileNotFoundError):  # as above
            gone.rename(path)


def _used_addresses(store: Store, step_ids: Iterable[str], what: str, on_progress: OnProgress) -> set[str]:
    """Return the addresses of the objects that these steps point to."""

    def read_address(step_id: str) -> Iterator[str]:
        if (commit := store.lookup(step_id)) is not None:
            yield commit.manifest

    return set(map_parallel(THREADS, read_address, list(step_ids), what, on_progress))


def _wanted_steps(store: Store, keep: int) -> set[str]:
    kept = _select_newest(list_run_logs(store), keep)
    for sweep in _select_newest(list_sweeps(store), keep):
        kept += [RunLog(folder) for folder in sweep.folder.glob("trials/*/*")]
    store.pull("promoted")
    wanted = {json.loads(path.read_text())["step_id"] for path in store.local("promoted").glob("*.json")}
    for run_log in kept:
        wanted |= {step["step_id"] for step in run_log.steps() if step["step_id"]}
    return wanted


def _select_newest(found: Iterable[RunLog], keep: int) -> list[RunLog]:
    """Return the first `keep` of them, and those that are pinned."""
    return [run_log for n, run_log in enumerate(found) if n < keep or (run_log.folder / "pinned").exists()]


def _list_folders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return iter(())  # another collection is running
    return (folder / name for name in names)


def _size_if_old(path: Path, before: float) -> int | None:
    """Return the total bytes at or below a path if all of it was modified before `before`, in seconds since 1970.

    Returns None otherwise, and if another process removes it meanwhile.
    """
    total = 0
    try:
        for stat in _walk_stats(path):
            if stat.st_mtime >= before:
                return None
            if S_ISREG(stat.st_mode):
                total += stat.st_size
    except FileNotFoundError:
        return None
    return total


def _walk_stats(path: Path) -> Iterator[os.stat_result]:
    """Yield the stat of a path and of everything below it. Stores have millions of files: pathlib is half as fast."""
    yield path.stat()
    folders = [str(path)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
