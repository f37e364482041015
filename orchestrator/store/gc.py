"""Removes what nothing needs any more. Marks first, waits out a grace period, deletes last.

Needed: every step that a kept run's plan names (the newest runs, the trials of the newest sweeps, and those whose
folder holds a file `pinned`), every step that was promoted, every step that is being worked on, every object that a
remaining step points to, and everything made or used within the grace period. Each folder is moved away, looked at once
more, and put back if somebody used it at that moment; what is then gone is missing to everybody at once, and so is
computed again rather than read half. Of a bucket goes what `bucket_gc` says; its folder's copies go as results do.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from orchestrator.journal import Journal, journals, sweeps
from orchestrator.store import Store, bucket_gc
from orchestrator.store.home import Doomed
from orchestrator.store.lease import holders
from orchestrator.store.many import Tell, at_once, nobody

THREADS = 16
"""For a disk that many machines share: with calls 2 ms late, twelve times as fast as one. On a disk of one's own a few
would do, and these take up to half as long again."""

_MOVED = {".aside-": "moved aside as damaged", ".gone-": "half removed"}


def plan(store: Store, *, keep: int, grace: float, tell: Tell = nobody) -> list[Doomed]:
    """What can go. keep: the newest runs whose results stay. grace: seconds; what was made or used since stays."""
    before = time.time() - grace
    wanted = _wanted(store, keep) | {step_id for step_id, owner in holders(store) if not owner.endswith("gone")}
    steps, objects = list(_folders(store.local("steps"))), list(_folders(store.local("objects")))
    # Where the store is a bucket, steps that others did have no folder here, but their objects may have copies.
    pointed = _pointed(store, wanted - {step.name for step in steps}, "steps of others", tell)

    def of_step(step: Path) -> Iterator[Doomed]:
        if step.name not in wanted and (size := _old(step, before)) is not None:
            yield Doomed(f"steps/{step.name}", _moved(step.name) or "a step that no kept run names", size)
            return
        commit = store.lookup(step.name)
        if commit is not None:
            pointed.add(commit.manifest)
        for inside in _folders(step):
            over = commit is not None and inside.name in ("attempts", "work")
            why = _moved(inside.name) or ("left over by attempts of a finished step" if over else "")
            if why and (size := _old(inside, before)) is not None:
                yield Doomed(f"steps/{step.name}/{inside.name}", why, size)

    def of_object(item: Path) -> Iterator[Doomed]:
        if item.name not in pointed and (size := _old(item, before)) is not None:
            yield Doomed(f"objects/{item.name}", _moved(item.name) or "an object of no step", size)

    doomed = at_once(THREADS, of_step, steps, "steps", tell)
    doomed += at_once(THREADS, of_object, objects, "objects", tell)
    return doomed + bucket_gc.plan(store, wanted, before, tell)


def sweep(store: Store, doomed: Sequence[Doomed], *, grace: float, tell: Tell = nobody) -> list[Doomed]:
    """Removes them, but for those that were used since; returns what is gone. Killed anywhere, the store is whole."""
    before = time.time() - grace

    def take(item: Doomed) -> Iterator[tuple[Doomed, Path]]:
        return ((item, gone) for gone in _take(store.local(item.key), before))

    def remove(taken: tuple[Doomed, Path]) -> Iterator[Doomed]:
        item, gone = taken
        with suppress(FileNotFoundError):  # somebody else collects
            shutil.rmtree(gone)
        yield item

    here = [item for item in doomed if not item.far]
    objects = [item for item in here if item.key.startswith("objects/")]
    first = [item for item in here if not item.key.startswith("objects/")]
    taken = at_once(THREADS, take, first, "steps moved away", tell)
    steps = (step.name for step in _folders(store.local("steps")) if not step.name.startswith("."))
    pointed = _pointed(store, steps, "steps that stay", tell)
    objects = [item for item in objects if item.key.removeprefix("objects/") not in pointed]
    taken += at_once(THREADS, take, objects, "objects moved away", tell)
    removed = at_once(THREADS, remove, taken, "removed", tell)
    return removed + bucket_gc.sweep(store, [item for item in doomed if item.far], before, tell)


def _moved(name: str) -> str:
    """Why a folder was moved away, by its new name; empty if it was not."""
    return next((why for start, why in _MOVED.items() if name.startswith(start)), "")


def _take(path: Path, before: float) -> Iterator[Path]:
    """Moves a folder away and yields where to; puts it back if it was used in the meantime."""
    gone = path.with_name(f".gone-{uuid.uuid4().hex}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return  # somebody else collects
    if _old(gone, before) is not None or path.exists():
        yield gone
    else:
        with suppress(FileNotFoundError):  # as above
            gone.rename(path)


def _pointed(store: Store, step_ids: Iterable[str], what: str, tell: Tell) -> set[str]:
    """Addresses of the objects that these steps point to."""

    def of(step_id: str) -> Iterator[str]:
        if (commit := store.lookup(step_id)) is not None:
            yield commit.manifest

    return set(at_once(THREADS, of, list(step_ids), what, tell))


def _wanted(store: Store, keep: int) -> set[str]:
    kept = _newest(journals(store), keep)
    for sweep in _newest(sweeps(store), keep):
        kept += [Journal(folder) for folder in sweep.folder.glob("trials/*/*")]
    store.pull("promoted")
    wanted = {json.loads(path.read_text())["step_id"] for path in store.local("promoted").glob("*.json")}
    for journal in kept:
        wanted |= {step["step_id"] for step in journal.steps() if step["step_id"]}
    return wanted


def _newest(found: Iterable[Journal], keep: int) -> list[Journal]:
    """The first of them, and those that are pinned."""
    return [journal for n, journal in enumerate(found) if n < keep or (journal.folder / "pinned").exists()]


def _folders(folder: Path) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return iter(())  # somebody else collects
    return (folder / name for name in names)


def _old(path: Path, before: float) -> int | None:
    """Bytes of the files at or below a path, if all there was modified before `before`, seconds since 1970; else None,
    also where somebody removes it meanwhile."""
    total = 0
    try:
        for stat in _all(path):
            if stat.st_mtime >= before:
                return None
            if S_ISREG(stat.st_mode):
                total += stat.st_size
    except FileNotFoundError:
        return None
    return total


def _all(path: Path) -> Iterator[os.stat_result]:
    """Of a path and all below it. By os.scandir: stores have millions of files, and pathlib takes twice as long."""
    yield path.stat()
    folders = [str(path)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                yield entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
