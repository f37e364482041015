"""What runs of the command leave in a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.store import Commit, Store


def results(store: Path) -> dict[str, Commit]:
    """Step name -> its commit; every byte of every artifact is looked at on the way."""
    opened, found = Store.open(store), {}
    for step in store.glob("steps/*"):
        if (commit := opened.lookup(step.name)) is not None:
            opened.path(commit.manifest, full=True)
            found[commit.record["name"]] = commit
    return found


def addresses(store: Path) -> dict[str, str]:
    """Step name -> the address of its artifact."""
    return {name: commit.manifest for name, commit in results(store).items()}


def events(store: Path) -> list[dict[str, Any]]:
    """Of all runs, in their order."""
    files = sorted(store.glob("runs/*/events.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]
