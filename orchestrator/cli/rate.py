"""Smoothed rate of progress."""

from __future__ import annotations

import math

TIME_CONSTANT = 20.0
"""Time constant of the smoothing, in seconds: after it, an observed rate has the weight 1/e."""


class Rate:
    """Smoothed units per second: sums of work and of time with exponential decay, unbiased by irregular reports."""

    def __init__(self) -> None:
        self.work = self.time = 0.0
        self.last: tuple[float, float] | None = None

    def update(self, now: float, done: float) -> None:
        """Add a report. Work before the first report (of a resumed step) is not counted."""
        if self.last is None or done < self.last[1]:
            self.work = self.time = 0.0
            self.last = now, done
            return
        passed, gained = now - self.last[0], done - self.last[1]
        if passed < 0.2:
            return  # too short to measure; the next report includes it
        fade = math.exp(-passed / TIME_CONSTANT)
        self.work, self.time = self.work * fade + gained, self.time * fade + passed
        self.last = now, done

    @property
    def per_second(self) -> float:
        return self.work / self.time if self.time else 0.0

    def left(self, now: float, total: float) -> float | None:
        """Return the seconds until `total`, or None if not known yet."""
        if self.last is None or self.per_second <= 0:
            return None
        return max(0.0, (total - self.last[1]) / self.per_second - (now - self.last[0]))
