"""Progress of a map over shards. A module of its own: the actor that counts must not import torch and Ray Data."""

from __future__ import annotations

import time

from ratchet.orchestrator.job_interface import Context, Progress

REPORT_SECONDS = 0.25
"""Minimum time between two progress reports of one worker."""


class ProgressTally:
    """Adds up the progress of all workers and passes it on."""

    def __init__(self, context: Context, done: int, total: int | None) -> None:
        self.context, self.done, self.total = context, done, total
        self.shards: dict[str, tuple[int, int]] = {}
        self.start: tuple[float, int] | None = None
        """Time and tokens of the first report, when loading is over."""
        self.passed_on = 0.0

    def report(self, shard: str, rows: int, tokens: int) -> None:
        self.shards[shard] = (rows, tokens)
        self.start = self.start or (time.monotonic(), tokens)
        if time.monotonic() - self.passed_on >= REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        self.passed_on = time.monotonic()
        rows = self.done + sum(rows for rows, _ in self.shards.values())
        tokens = sum(tokens for _, tokens in self.shards.values())
        since, before = self.start or (self.passed_on, 0)
        speed = {"tokens_per_s": (tokens - before) / (self.passed_on - since)} if tokens > before else {}
        self.context.progress(Progress(rows, self.total, "rows", numbers=speed))
