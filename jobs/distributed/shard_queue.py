"""Queue of the shards of a map, and progress of its workers. A separate module, so that the actor imports no torch."""

import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path

from ratchet.orchestrator.job_interface import Context, Progress

REPORT_SECONDS = 0.25
"""Minimum time between two progress reports of one worker."""


class ProgressTally:
    """Adds up the progress of all workers and passes it on."""

    def __init__(self, context: Context, done: int, total: int | None) -> None:
        self.context = context
        self.done = done
        self.total = total
        self.shards: dict[str, tuple[int, int]] = {}
        self.start: tuple[float, int] | None = None
        """Time and tokens of the first report, so that the speed does not include the loading of models."""
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
        if tokens > before:
            speed = {"tokens_per_s": (tokens - before) / (self.passed_on - since)}
        else:
            speed = {}
        self.context.progress(Progress(rows, self.total, "rows", numbers=speed))


class ShardQueue(ProgressTally):
    """Gives each shard to one worker at a time, and adds up the progress of all workers."""

    def __init__(
        self, context: Context, done: int, total: int | None, shards: Iterable[tuple[Path, Path]]
    ) -> None:
        """done, total: numbers of rows. shards: (source, target) of each."""
        super().__init__(context, done, total)
        self.waiting = deque(shards)
        self.taken: dict[int, tuple[Path, Path]] = {}

    def take(self, worker: int) -> tuple[Path, Path] | None:
        """Return the next shard for a worker, or None if none is left. Its previous shard counts as finished."""
        self.taken.pop(worker, None)
        if self.waiting:
            self.taken[worker] = self.waiting.popleft()
        return self.taken.get(worker)

    def put_back(self, worker: int) -> None:
        """Put the shard of a lost worker back to the front. The restarted worker calls this before it takes a shard."""
        if worker in self.taken:
            self.waiting.appendleft(self.taken.pop(worker))

    def count_unfinished(self) -> int:
        return len(self.waiting) + len(self.taken)
