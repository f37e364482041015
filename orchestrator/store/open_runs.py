"""Open runs: which drivers may be running, so that `gc` keeps what they use.

    open_runs/<random>   mark of a driver, from before planning until its end: its process, and the folder of its run

The plan in that folder names the steps and objects that the run uses. Until there is a plan, `gc` keeps all steps. The
next `gc` on the same machine removes the mark of a killed driver; `gc` on another machine removes it a day after the
last heartbeat.
"""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import describe_process, is_gone

INTERVAL = 600.0
"""Seconds between heartbeats."""


class OpenRun:
    """The mark of this driver. Use as a context manager around planning and execution."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.key = f"open_runs/{uuid.uuid4().hex}"
        self.folder: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="open run", daemon=True)

    def __enter__(self) -> OpenRun:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        self._closing.set()
        self._thread.join()
        self.store.remove(self.key)

    def set_folder(self, folder: Path) -> None:
        """Record the folder of the run, or of the sweep, whose plans name the steps in use."""
        self.folder = folder.relative_to(self.store.root).as_posix()
        self._write()

    def _write(self) -> None:
        self.store.overwrite(self.key, {**describe_process(self.folder or ""), "at": time.time()})

    def _renew(self) -> None:
        while not self._closing.wait(INTERVAL):
            with suppress(OSError):
                self._write()


def list_open_runs(store: Store) -> list[dict[str, Any]]:
    """Return the marks of drivers that may be running. Their `run` is the folder of the run in the store, or empty.

    Marks that drivers left behind when they were killed are removed.
    """
    found = []
    for name, mark in store.read_all("open_runs"):
        if is_gone(mark):
            store.remove(f"open_runs/{name}")
        else:
            found.append(mark)
    return found
