"""Signals: SIGTERM, which Slurm, Kubernetes and systemd send before SIGKILL, interrupts a command like ctrl-C."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_on_termination() -> Iterator[list[int]]:
    """Handle the first SIGTERM inside the block as SIGINT, and ignore later ones. Yields the list of received signals.
    Main thread only."""
    received = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            return
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # a shell starts commands in the background with SIGINT ignored
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def end_at_once() -> Iterator[None]:
    """End the process at once on ctrl-C or SIGTERM inside the block. Used around imports: there is nothing to clean up,
    and libraries turn a KeyboardInterrupt during their import into other errors. Main thread only."""
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
