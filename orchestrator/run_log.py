"""Run logs: `runs/<run_id>/plan.json`, `events.jsonl`, `errors/`, and the report.

`plan.json` lists the steps with their ids as they become known: `gc` keeps their results, and the next `--explain`
compares with them. `events.jsonl` is append-only.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ratchet.orchestrator.atomic_file import make_folder, write_atomically
from ratchet.orchestrator.job_interface import jsonl
from ratchet.orchestrator.store import Store


class RunLog:
    """The folder of a run. Methods may be called from any thread of the driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_id = folder.name

    @classmethod
    def begin(cls, store: Store, recipe: str, about: Mapping[str, Any]) -> RunLog:
        """Create the folder of a new run. about: command, parameters, settings, versions."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        run_log = cls(store.local("runs", f"{stamp}-{recipe}-{secrets.token_hex(2)}"))
        make_folder(run_log.folder)
        run_log.write("about.json", {"recipe": recipe, "started": time.time(), **about})
        return run_log

    def event(self, kind: str, step: str | None = None, **details: Any) -> None:
        """Append a line to events.jsonl, durably. A hit is durable with the next other event: a run may have many."""
        line = json.dumps({"t": round(time.time(), 3), "event": kind, "step": step, **details})
        jsonl.append(self.folder / "events.jsonl", line, durable=kind != "hit")

    def events(self) -> list[dict[str, Any]]:
        """Read all events. An incomplete last line is skipped."""
        return jsonl.read(self.folder / "events.jsonl")

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON file of the run atomically."""
        write_atomically(self.folder / name, json.dumps(value, indent=1))

    def read(self, name: str) -> Any:
        """Read a JSON file of the run; None if there is none."""
        try:
            return json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            return None

    def steps(self) -> list[dict[str, Any]]:
        """Read the steps of plan.json; empty if there is none."""
        steps: list[dict[str, Any]] = (self.read("plan.json") or {"steps": []})["steps"]
        return steps

    def error(self, step: str, text: str) -> Path:
        """Write a traceback to a file and return its path."""
        path = self.folder / "errors" / f"{step.replace('/', '.')}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path


def list_run_logs(store: Store, recipe: str | None = None) -> Iterator[RunLog]:
    """Yield the runs of a store, newest first; only those of one recipe if it is given."""
    store.pull("runs")
    runs = store.local("runs")
    for folder in sorted(runs.iterdir() if runs.is_dir() else [], reverse=True):
        run_log = RunLog(folder)
        about = run_log.read("about.json") if folder.is_dir() else None
        if about is not None and recipe in (None, about["recipe"]):
            yield run_log


def list_sweeps(store: Store) -> list[RunLog]:
    """Return the sweeps of a store, by their last event, newest first (see `sweeps.trial_log`)."""
    store.pull("sweeps")
    found = [RunLog(path.parent) for path in store.local("sweeps").glob("*/about.json")]
    return sorted(
        found, key=lambda run_log: max(path.stat().st_mtime for path in run_log.folder.iterdir()), reverse=True
    )


def read_last_step_ids(store: Store, recipe: str) -> dict[str, str]:
    """Return step name -> step id, from the newest run of the recipe that has one."""
    known: dict[str, str] = {}
    for run_log in list_run_logs(store, recipe):
        for step in run_log.steps():
            if step["step_id"]:
                known.setdefault(step["name"], step["step_id"])
    return known
