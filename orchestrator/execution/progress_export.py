"""The progress of a run for other processes: a file in the folder of the run, for `ratchet status --follow`, and
Prometheus metrics through the exporter of the Ray cluster."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

from ray.util.metrics import Gauge

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

    def __init__(self, store: Store, run_log: RunLog, recipe: str) -> None:
        self.store, self.run_log, self.tags = store, run_log, {"recipe": recipe, "run": run_log.run_id}
        self.latest: dict[str, Progress] = {}
        self.rates: dict[str, tuple[float, Progress]] = {}
        self.exported, self.uploaded = -INTERVAL, time.monotonic()
        of_step = ("recipe", "run", "step", "unit")
        self.steps = Gauge("ratchet_steps", "Steps of the run in this status.", ("recipe", "run", "status"))
        self.done = Gauge("ratchet_step_done", "Units that the step has done.", of_step)
        self.total = Gauge("ratchet_step_total", "Units that the step will do, where known.", of_step)
        self.rate = Gauge("ratchet_step_units_per_second", "Units per second since the last update.", of_step)
        self.number = Gauge(
            "ratchet_step_number", "A current number of the step: tokens_per_s, loss.", (*of_step[:3], "name")
        )

    def update(self, status: Mapping[str, Status], progress: Mapping[str, Progress]) -> None:
        """Take the latest progress of steps, and export everything if it is time."""
        self.latest |= progress
        now = time.monotonic()
        if now - self.exported < INTERVAL:
            return
        self.exported = now
        running = {step: one for step, one in self.latest.items() if status[step] is Status.RUNNING}
        self._set_gauges(status, running, now)
        content = json.dumps({step: asdict(one) for step, one in running.items()}).encode()
        with suppress(OSError):  # a full disk is reported by the steps that write to it
            replace(self.run_log.folder / PROGRESS, content, durable=False)
        if now - self.uploaded >= UPLOAD_INTERVAL:
            self.uploaded = now
            with suppress(UnreachableError):
                self.store.publish(self.run_log.folder)

    def _set_gauges(self, status: Mapping[str, Status], running: Mapping[str, Progress], now: float) -> None:
        counts = Counter(status.values())
        for state in Status:
            self.steps.set(counts[state], {**self.tags, "status": state.value})
        for step, (_, last) in list(self.rates.items()):
            if step not in running:
                self.rate.set(0, {**self.tags, "step": step, "unit": last.unit})
                del self.rates[step], self.latest[step]
        for step, one in running.items():
            tags = {**self.tags, "step": step}
            by_unit = {**tags, "unit": one.unit}
            self.done.set(one.done, by_unit)
            if one.total is not None:
                self.total.set(one.total, by_unit)
            for name, value in one.numbers.items():
                self.number.set(value, {**tags, "name": name})
            before, last = self.rates.get(step, (now, one))
            self.rates[step] = now, one
            # A new unit or total means a new kind of work, which begins at 0.
            start = last.done if (last.unit, last.total) == (one.unit, one.total) and last.done <= one.done else 0.0
            self.rate.set((one.done - start) / (now - before) if now > before else 0.0, by_unit)
