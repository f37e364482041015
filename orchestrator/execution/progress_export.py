"""The progress of a run for other processes: a file in the folder of the run, for `ratchet status --follow`."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

from ratchet.errors import UnreachableError
from ratchet.orchestrator.atomic_file import replace
from ratchet.orchestrator.execution.schedule import Status
from ratchet.orchestrator.job_interface.job import Progress
from ratchet.orchestrator.run_log import PROGRESS, RunLog
from ratchet.orchestrator.store import Store

INTERVAL = 5.0
"""Seconds between updates."""

UPLOAD_INTERVAL = 60.0
"""Seconds between uploads of the run's folder to object storage."""


class ProgressExport:
    """Exporter of the progress of a run. `update` may be called at any rate."""

    def __init__(self, store: Store, run_log: RunLog) -> None:
        self.store = store
        self.run_log = run_log
        self.latest: dict[str, Progress] = {}
        self.exported = -INTERVAL
        self.uploaded = time.monotonic()

    def update(self, status: Mapping[str, Status], progress: Mapping[str, Progress]) -> None:
        """Take the latest progress of steps, and export everything if it is time."""
        self.latest |= progress
        now = time.monotonic()
        if now - self.exported < INTERVAL:
            return
        self.exported = now
        running = {}
        for step, one in self.latest.items():
            if status[step] is Status.RUNNING:
                running[step] = one
        content = json.dumps({step: asdict(one) for step, one in running.items()}).encode()
        with suppress(OSError):  # a full disk is reported by the steps that write to it
            replace(self.run_log.folder / PROGRESS, content, durable=False)
        if now - self.uploaded >= UPLOAD_INTERVAL:
            self.uploaded = now
            with suppress(UnreachableError):
                self.store.upload_folder(self.run_log.folder)
