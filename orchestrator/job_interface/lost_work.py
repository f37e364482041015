"""Lost work: records how much work is repeated after a worker is lost.

A process reports its progress in an append-only file, which survives the loss of workers, machines and the driver. The
process that repeats the work reads this file, and adds the amount of lost work to `lost_work.jsonl` in the step's work
folder. The orchestrator copies these lines into the record of the result.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratchet.orchestrator.atomic_file import append_json, read_json_lines
from ratchet.orchestrator.job_interface.job import Context

REPORT_SECONDS = 2.0
"""Minimum seconds between two progress reports, which is the resolution of the lost work."""


@dataclass(frozen=True)
class LostWork:
    """Work that was done and has to be repeated."""

    what: str
    """The name of a shard, `training`, the failed attempt, or a message about damage."""
    amount: float | None = None
    """Lost work in `unit`s. None: not known."""
    unit: str = ""
    seconds: float | None = None


class WorkTracker:
    """Records the progress of one piece of work, until its result is saved."""

    def __init__(self, context: Context, path: Path, what: str, unit: str) -> None:
        self.context, self.path, self.what, self.unit = context, path, what, unit
        self.reported_at = 0.0

    def start(self, kept: float = 0.0) -> int:
        """Start the work, or resume it after `kept` units, and note the work that the previous process did beyond them.

        Returns how often the work was started before in this attempt without being finished.
        """
        reported = read_json_lines(self.path)
        if starts := [number for number, line in enumerate(reported) if "attempt" in line]:
            _note(self.context, self._measure_lost_work(reported[starts[-1] :], kept))
        self._append(attempt=self.context.attempt, done=kept)
        return sum(reported[number]["attempt"] == self.context.attempt for number in starts)

    def report(self, done: float) -> None:
        """Report that `done` units are done."""
        if time.monotonic() - self.reported_at >= REPORT_SECONDS:
            self.reported_at = time.monotonic()
            self._append(done=done)

    def finish(self) -> None:
        """Remove the progress file, since the result is saved."""
        self.path.unlink(missing_ok=True)

    def _measure_lost_work(self, reported: list[dict[str, Any]], kept: float) -> LostWork:
        last = reported[-1]
        since = next((line for line in reported if line["done"] >= kept), last)
        return LostWork(self.what, max(0.0, last["done"] - kept), self.unit, round(last["t"] - since["t"], 3))

    def _append(self, **line: float) -> None:
        append_json(self.path, {"t": time.time(), **line})


def read_lost_work(work: Path) -> list[dict[str, Any]]:
    """Read the `LostWork` entries in a step's work folder, each with the number of the attempt that noted it."""
    return read_json_lines(work / "lost_work.jsonl")


def note_damage(context: Context, what: str) -> None:
    """Note that saved work is damaged and not used. `WorkTracker.start` notes the amount that is repeated."""
    _note(context, LostWork(what))


def _note(context: Context, lost: LostWork) -> None:
    append_json(context.work / "lost_work.jsonl", {"attempt": context.attempt, **asdict(lost)})
