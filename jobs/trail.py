"""What a loss cost: work tells how far it is, and who does it again reads there what is done a second time.

A trail is a file beside the work, to which lines are only ever appended; it outlives worker, machine and driver. What
was lost is noted in the step's work folder (`losses`), from where the orchestrator takes it into the result's record.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jobs import lines
from jobs.job import Context

TELL_SECONDS = 2.0
"""Between two lines: what is not known of a loss."""


@dataclass(frozen=True)
class Loss:
    """Work that was done and is done again."""

    what: str
    """The work: a shard's name, or `training`."""
    amount: float
    unit: str
    seconds: float


class Trail:
    """How far one piece of work is. Made by whoever is at it; ended when what it made is safe."""

    def __init__(self, context: Context, path: Path, what: str, unit: str) -> None:
        self.context, self.path, self.what, self.unit = context, path, what, unit
        self.told_at = 0.0

    def begin(self, kept: float = 0.0) -> int:
        """Begins the work, or goes on from what was `kept` of it; notes what the last one at it did beyond that.
        Returns how many began it before in this attempt, and did not end it."""
        told = lines.whole(self.path)
        begun = [number for number, line in enumerate(told) if "attempt" in line]
        if begun:
            _note(self.context, self._loss(told[begun[-1] :], kept))
        self._append(attempt=self.context.attempt, done=kept)
        return sum(told[number]["attempt"] == self.context.attempt for number in begun)

    def tell(self, done: float) -> None:
        """Says how far the work is."""
        if time.monotonic() - self.told_at >= TELL_SECONDS:
            self.told_at = time.monotonic()
            self._append(done=done)

    def end(self) -> None:
        self.path.unlink(missing_ok=True)

    def _loss(self, told: list[dict[str, Any]], kept: float) -> Loss:
        last = told[-1]
        since = next((line for line in told if line["done"] >= kept), last)
        return Loss(self.what, max(0.0, last["done"] - kept), self.unit, round(last["t"] - since["t"], 3))

    def _append(self, **line: float) -> None:
        _append(self.path, {"t": time.time(), **line})


def losses(work: Path) -> list[dict[str, Any]]:
    """What was noted below a step's work folder: `Loss`es with the attempt that found them."""
    return lines.whole(work / "losses.jsonl")


def _note(context: Context, loss: Loss) -> None:
    _append(context.work / "losses.jsonl", {"attempt": context.attempt, **asdict(loss)})


def _append(path: Path, line: dict[str, Any]) -> None:
    """On a line of its own, whatever a kill left before it."""
    lines.append(path, "\n" + json.dumps(line))
