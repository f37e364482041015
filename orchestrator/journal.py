"""What a run leaves behind: `runs/<run_id>/plan.json`, `events.jsonl`, `errors/`, and later the report.

`plan.json` lists the steps with their ids as they become known: it is what `gc` keeps alive and what the next run's
`--explain` compares with. `events.jsonl` is only ever appended to.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jobs import lines
from orchestrator.store import Store


class Journal:
    """One run's folder. Methods may be called from any thread of the driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_id = folder.name

    @classmethod
    def begin(cls, store: Store, recipe: str, about: Mapping[str, Any]) -> Journal:
        """A new run's folder. `about`: command, parameters, settings, versions."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        journal = cls(store.local("runs", f"{stamp}-{recipe}-{secrets.token_hex(2)}"))
        journal.folder.mkdir(parents=True)
        journal.write("about.json", {"recipe": recipe, "started": time.time(), **about})
        return journal

    def event(self, kind: str, step: str | None = None, **details: Any) -> None:
        """Appends one line to events.jsonl: one write, so that lines of two threads never mix."""
        line = json.dumps({"t": round(time.time(), 3), "event": kind, "step": step, **details}) + "\n"
        lines.append(self.folder / "events.jsonl", line)

    def events(self) -> list[dict[str, Any]]:
        """All whole lines; a last line torn by a kill is left out."""
        return lines.whole(self.folder / "events.jsonl")

    def write(self, name: str, value: Any) -> None:
        """Replaces a JSON file of the run, whole or not at all."""
        path = self.folder / name
        fresh = path.with_name(f".{name}.{os.getpid()}")
        fresh.write_text(json.dumps(value, indent=1))
        fresh.replace(path)

    def read(self, name: str) -> Any:
        """A JSON file of the run, or None."""
        try:
            return json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            return None

    def steps(self) -> list[dict[str, Any]]:
        """The plan's steps as they were last written down; none before that."""
        return (self.read("plan.json") or {"steps": []})["steps"]

    def error(self, step: str, text: str) -> Path:
        """Keeps a full traceback; returns where."""
        path = self.folder / "errors" / f"{step.replace('/', '.')}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path


def journals(store: Store, recipe: str | None = None) -> Iterator[Journal]:
    """The runs of a store, newest first; only those of one recipe if it is named."""
    store.pull("runs")
    runs = store.local("runs")
    for folder in sorted(runs.iterdir() if runs.is_dir() else [], reverse=True):
        journal = Journal(folder)
        about = journal.read("about.json") if folder.is_dir() else None
        if about is not None and recipe in (None, about["recipe"]):
            yield journal


def sweeps(store: Store) -> list[Journal]:
    """The sweeps of a store, that of the last event first; below each lie its trials' runs (see `sweep.ledger`)."""
    store.pull("sweeps")
    found = [Journal(path.parent) for path in store.local("sweeps").glob("*/about.json")]
    return sorted(
        found, key=lambda journal: max(path.stat().st_mtime for path in journal.folder.iterdir()), reverse=True
    )


def last_ids(store: Store, recipe: str) -> dict[str, str]:
    """Step name -> step id, from the newest run of the recipe in which it was known."""
    known: dict[str, str] = {}
    for journal in journals(store, recipe):
        for step in journal.steps():
            if step["step_id"]:
                known.setdefault(step["name"], step["step_id"])
    return known
