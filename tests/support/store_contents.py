"""Results and events that runs have written to a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ratchet.orchestrator.store import Commit, Store


def results(store: Path) -> dict[str, Commit]:
    """Map each step name to its commit. Verifies every byte of every artifact."""
    opened, found = Store.open(store), {}
    for step in store.glob("steps/*"):
        if (commit := opened.lookup(step.name)) is not None:
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
    return lambda: any((event["event"], event["step"]) == ("started", step) for event in events(store))
