"""SIGTERM, which Slurm, Kubernetes and systemd send before they kill, interrupts a command as ctrl-C does."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def end_at_once() -> Iterator[None]:
    """While it is entered, ctrl-C and SIGTERM end the process at once. For imports: nothing has to be cleaned up, and
    libraries turn a KeyboardInterrupt in the middle of their import into errors of their own. Main thread only."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, b"ratchet: stopped; nothing was started; give the same command again\n")
    os._exit(128 + number)
