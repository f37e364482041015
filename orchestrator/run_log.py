"""Run logs (`runs/<run_id>/plan.json`, `events.jsonl`, `errors/`, the report), and the interface of their listeners.

`plan.json` lists the steps, and their ids as soon as they are known. `gc` keeps the results of these steps, and a later
`--explain` compares with them. `events.jsonl` is append-only.
"""

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratchet.errors import DamagedError, StoreError
from ratchet.orchestrator.atomic_file import (
    append_json,
    make_folder,
    read_json_lines,
    write_atomically,
)
from ratchet.orchestrator.job_interface.job import Progress
from ratchet.orchestrator.store import Store


class RunListener:
    """Receiver of the events of a run. Methods may be called from any thread; in this base class they do nothing."""

    def show(self, event: Mapping[str, Any]) -> None:
        """Record an event of the run log (see `RunLog.event`)."""

    def progress(self, name: str, progress: Progress) -> None:
        """Record the progress of a step. This may be called at any rate."""

    def message(self, text: str) -> None:
        """Show a message."""


class RunLog:
    """The folder of a run. Methods may be called from any thread of the driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_id = folder.name
        self.listener = RunListener()
        """Receiver of the events that are appended."""

    @classmethod
    def begin(
        cls, store: Store, recipe: str, about: Mapping[str, Any], folder: str = "runs"
    ) -> "RunLog":
        """Create the folder of a new run or sweep. about: command, parameters, versions. folder: `runs` or `sweeps`."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        run_log = cls(store.local(folder, f"{stamp}-{recipe}-{secrets.token_hex(4)}"))
        make_folder(run_log.folder, new=True)  # the runs of two drivers never mix
        run_log.write("about.json", {"recipe": recipe, "started": time.time(), **about})
        return run_log

    def event(self, kind: str, step: str | None = None, **details: Any) -> None:
        """Append a line to events.jsonl and sync it, and show it to the listener. Hits, which may be many, are synced
        with the next other event."""
        event = {"t": round(time.time(), 3), "event": kind, "step": step, **details}
        append_json(self.folder / "events.jsonl", event, durable=kind != "hit")
        self.listener.show(event)

    def events(self) -> list[dict[str, Any]]:
        """Read all events. An incomplete last line, and what is no event, is skipped."""
        lines = read_json_lines(self.folder / "events.jsonl")
        return [line for line in lines if {"t", "event", "step"} <= line.keys()]

    def write(self, name: str, value: Any) -> None:
        """Replace a JSON file of the run atomically."""
        write_atomically(self.folder / name, json.dumps(value, indent=1))

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file of the run; None if there is none. Raises DamagedError if it is not a JSON object."""
        path = self.folder / name
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise DamagedError(
                f"{path}: not a JSON object; expected what the run wrote; give its command again"
            )
        return value

    def steps(self) -> list[dict[str, Any]]:
        """Read the steps of plan.json; empty if there is none. Raises DamagedError if it cannot be read."""
        steps = (self.read("plan.json") or {"steps": []}).get("steps")
        if not isinstance(steps, list) or not all(
            isinstance(step, dict) and "step_id" in step for step in steps
        ):
            raise DamagedError(
                f"{self.folder / 'plan.json'}: no list of steps; expected a plan; give its command again"
            )
        return steps

    def trials(self) -> list[dict[str, Any]]:
        """Read the trials of a sweep; empty if none has started."""
        return list((self.read("trials.json") or {"trials": []})["trials"])

    def find_end(self) -> str:
        """Return how the run ended: `finished`, `failed` or `interrupted`; empty if it has not ended or was killed."""
        end = next((event for event in reversed(self.events()) if event["event"] == "end"), None)
        if end is None:
            return ""
        if end["interrupted"]:
            return "interrupted"
        if end["failures"]:
            return "failed"
        return "finished"

    def trace_file(self, step: str) -> Path:
        """Return the path of the traceback of a failed step."""
        return self.folder / "errors" / f"{step.replace('/', '.')}.txt"


def list_all_runs(store: Store, folder: str = "runs") -> list[RunLog]:
    """Return all runs or sweeps, newest first, including those without an about.json. folder: `runs` or `sweeps`."""
    store.backend.fetch(store.local(folder))
    found = []
    root = store.local(folder)
    for path in sorted(root.glob("*"), reverse=True):
        if path.is_dir():
            found.append(RunLog(path))
    return found


def list_run_logs(store: Store, recipe: str | None = None) -> Iterator[RunLog]:
    """Yield the runs of a store, newest first. recipe: yield only the runs of this recipe.

    A run whose about.json cannot be read is yielded only if no recipe is given."""
    for run_log in list_all_runs(store):
        try:
            about = run_log.read("about.json")
        except DamagedError:
            about = {}
        if about is not None and recipe in (None, about.get("recipe")):
            yield run_log


def find_run_log(store: Store, run: str = "") -> RunLog:
    """Return the newest run whose id begins with `run`. Raises StoreError, with the newest runs, if there is none."""
    known = []
    for run_log in list_run_logs(store):
        if run_log.run_id.startswith(run):
            return run_log
        known.append(run_log.run_id)
    wanted = f"no run '{run}'" if run else "no runs"
    newest = ", ".join(known[:5]) or "none; run a recipe first"
    raise StoreError(
        f"store {store.where}: {wanted} in it; expected the id of a run (`ratchet status` lists them), of which the"
        f" newest are {newest}"
    )


def read_last_step_ids(store: Store, recipe: str, names: Iterable[str]) -> dict[str, str]:
    """Return step name -> step id of the steps `names`, each from the newest run of the recipe in which it has an id.
    Reading stops once all are found, since a store may have a thousand runs."""
    known = dict[str, str]()
    wanted = set(names)
    if wanted:
        for run_log in list_run_logs(store, recipe):
            if wanted <= known.keys():
                break
            with suppress(DamagedError):
                for step in run_log.steps():
                    if step["step_id"] and step["name"] in wanted:
                        known.setdefault(step["name"], step["step_id"])
    return known
