"""The progress of all workers of a map. A separate module, so that its actor imports no torch."""

import time

from ratchet.orchestrator.job_interface import Context, Progress

REPORT_SECONDS = 0.25
"""Minimum time between two progress reports of one worker."""


class ProgressTally:
    """Adds up the progress of all workers and passes it on."""

    def __init__(self, context: Context, done: int, total: int | None) -> None:
        self.context = context
        self.done = done
        self.total = total
        self.pieces: dict[str, tuple[int, int]] = {}
        self.start: tuple[float, int] | None = None
        """Time and tokens of the first report, so that the speed does not include the loading of models."""
        self.passed_on = 0.0

    def report(self, piece: str, rows: int, tokens: int) -> None:
        self.pieces[piece] = (rows, tokens)
        self.start = self.start or (time.monotonic(), tokens)
        if time.monotonic() - self.passed_on >= REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        self.passed_on = time.monotonic()
        rows = self.done + sum(rows for rows, _ in self.pieces.values())
        tokens = sum(tokens for _, tokens in self.pieces.values())
        since, before = self.start or (self.passed_on, 0)
        if tokens > before:
            speed = {"tokens_per_s": (tokens - before) / (self.passed_on - since)}
        else:
            speed = {}
        self.context.progress(Progress(rows, self.total, "rows", numbers=speed))
