"""Removes what nothing needs any more. Marks first, waits out a grace period, deletes last.

Needed: every step that a kept run's plan names (the newest runs, and those whose folder holds a file `pinned`), every
step that is being worked on, every object that a remaining COMMIT points to, and everything younger than the grace
period.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Damaged
from orchestrator.journal import journals
from orchestrator.lease import holders
from orchestrator.store import Store


@dataclass(frozen=True)
class Doomed:
    """A folder or file that can go. `pointer`: removed before it, so that nothing ever points to what is gone."""

    path: Path
    why: str
    bytes: int
    pointer: Path | None = None

    def __str__(self) -> str:
        return f"{self.bytes / 1e6:10.1f} MB  {self.path.parent.name}/{self.path.name[:16]}  {self.why}"


def plan(store: Store, *, keep: int, grace: float) -> list[Doomed]:
    """What can go. keep: the newest runs whose results stay. grace: seconds; what is younger stays."""
    before = time.time() - grace
    wanted = _wanted(store, keep) | {step_id for step_id, owner in holders(store) if not owner.endswith("gone")}
    doomed: list[Doomed] = []
    pointed: set[str] = set()
    for step in _folders(store.local("steps")):
        committed = step / "COMMIT"
        if step.name not in wanted and _youngest(step) < before:
            doomed.append(Doomed(step, "a step that no kept run names", _size(step), committed))
            continue
        try:
            commit = store.lookup(step.name)
        except Damaged:
            commit = None
        if commit is not None:
            pointed.add(commit.manifest)
            for leftover in (step / "attempts", step / "work"):
                if leftover.exists() and _youngest(leftover) < before:
                    doomed.append(Doomed(leftover, "left over by attempts of a finished step", _size(leftover)))
        doomed += [
            Doomed(path, "moved aside as damaged", _size(path))
            for path in step.iterdir()
            if ".aside-" in path.name and _youngest(path) < before
        ]
    for item in _folders(store.local("objects")):
        if item.name not in pointed and _youngest(item) < before:
            aside = item.name.startswith(".")
            doomed.append(Doomed(item, "moved aside as damaged" if aside else "an object of no step", _size(item)))
    return doomed


def sweep(doomed: list[Doomed]) -> None:
    """Removes them: all pointers first, then the rest. Killed anywhere, the store stays whole."""
    for item in doomed:
        if item.pointer is not None:
            item.pointer.unlink(missing_ok=True)
    for item in doomed:
        if item.path.is_dir():
            shutil.rmtree(item.path)
        else:
            item.path.unlink(missing_ok=True)


def _wanted(store: Store, keep: int) -> set[str]:
    wanted: set[str] = set()
    for position, journal in enumerate(journals(store)):
        if position < keep or (journal.folder / "pinned").exists():
            steps = (journal.read("plan.json") or {"steps": []})["steps"]
            wanted |= {step["step_id"] for step in steps if step["step_id"]}
    return wanted


def _folders(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if path.is_dir())


def _youngest(path: Path) -> float:
    """The newest modification below a path, seconds since 1970."""
    return max([path.stat().st_mtime, *(p.stat().st_mtime for p in path.rglob("*") if p.exists())])


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
