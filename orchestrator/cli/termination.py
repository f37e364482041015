"""SIGTERM, which Slurm, Kubernetes and systemd send before they kill, interrupts a command as ctrl-C does."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Termination:
    """While it is entered, the first SIGTERM is handled as SIGINT, and later ones are ignored. Main thread only."""

    def __init__(self) -> None:
        self.received = False
        self.before: Any = None

    def __enter__(self) -> Termination:
        self.before = signal.signal(signal.SIGTERM, self._interrupt)
        return self

    def __exit__(self, *of_error: object) -> None:
        signal.signal(signal.SIGTERM, self.before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            return
        self.received = True
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # a shell starts commands in the background with SIGINT ignored
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)
