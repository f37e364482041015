"""Results and events that runs have written to a store, and stores with results that no run has computed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratchet.orchestrator import gc
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Commit, Store
from ratchet.orchestrator.store.lease import Lease, Leases

HOUR = 3600.0


def results(store: Path | str) -> dict[str, Commit]:
    """Map each step name to its commit. Verifies every byte of every artifact. store: a folder or URL."""
    opened, found = Store.open(store), {}
    for step in opened.list_names("steps"):
        if (commit := opened.lookup(step)) is not None:
            opened.path(commit.manifest, full=True)
            found[commit.record["name"]] = commit
    return found


def addresses(store: Path) -> dict[str, str]:
    """Map each step name to the address of its artifact."""
    return {name: commit.manifest for name, commit in results(store).items()}


def events(store: Path) -> list[dict[str, Any]]:
    """Read the events of all runs, in order."""
    files = sorted(store.glob("runs/*/events.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def started(store: Path, step: str) -> Callable[[], bool]:
    """Return a condition for `wait_for`: a run on this store has started the step."""
    return lambda: any(
        (event["event"], event["step"]) == ("started", step) for event in events(store)
    )


def made(store: Store, step_id: str, text: str) -> Commit:
    """Commit a step with one file."""
    return made_of(store, step_id, {"a.txt": text})


def made_of(store: Store, step_id: str, files: dict[str, str], **metrics: float) -> Commit:
    """Commit a step with these files, name -> text, and these metrics."""
    with Leases(store, "run") as leases:
        lease = leases.acquire(step_id)
        assert isinstance(lease, Lease)
        staging = store.staging(step_id, lease.attempt)
        for name, text in files.items():
            (staging / name).parent.mkdir(exist_ok=True)
            (staging / name).write_text(text)
        return lease.commit(staging, Result(metrics), {}, {})


def named_by_a_run(
    store: Store,
    *step_ids: str,
    pinned: bool = False,
    failures: dict[str, str] | None = None,
    finished: bool = True,
) -> RunLog:
    """Begin a run whose plan has these steps, and end it if `finished`."""
    run_log = RunLog.begin(store, "toy", {})
    steps = [{"name": step_id, "step_id": step_id} for step_id in step_ids]
    run_log.write("plan.json", {"recipe": "toy", "steps": steps})
    if pinned:
        (run_log.folder / "pinned").touch()
    if finished:
        run_log.event("end", failures=failures or {}, interrupted=False)
    return run_log


def age(folder: Path, seconds: float) -> None:
    """Set the times of everything in a folder back by so many seconds."""
    then = time.time() - seconds
    for path in [folder, *folder.rglob("*")]:
        with suppress(FileNotFoundError):  # a process removes it meanwhile
            os.utime(path, (then, then), follow_symlinks=False)


def collected(store: Store, keep: int = 5, grace: float = HOUR) -> list[str]:
    """Collect garbage and return the names of what was removed."""
    garbage = gc.find_garbage(store, keep=keep, grace=grace)
    gc.remove_garbage(garbage)
    return [item.name for item in garbage]


def list_running_attempts(store: Store) -> list[str]:
    """Return the steps whose newest attempt has not ended."""
    found = []
    for step_id in store.list_names("steps"):
        attempt, end = store.newest(step_id)
        if (
            attempt
            and end is None
            and store.read_if_whole(f"steps/{step_id}/attempts/{attempt}/lease")
        ):
            found.append(step_id)
    return found
