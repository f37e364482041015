"""The entry point: `ratchet`, or `python -m orchestrator`, and the signals that end it.

SIGTERM, which Slurm, Kubernetes and systemd send before SIGKILL, interrupts a command like ctrl-C. This module imports
little, so that the signals are handled while the rest is imported.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 0 success, 1 a step failed or a result is damaged, 2 wrong input, 130
    after ctrl-C, 141 if the output pipe was closed, 143 after SIGTERM."""
    with end_at_once():
        _prepare_streams()
        from ratchet.orchestrator.cli.commands import execute
    with interrupt_on_termination() as received:
        status = execute(sys.argv[1:] if argv is None else argv)
    if status == 130 and received:
        return 143
    return status


def _prepare_streams() -> None:
    """Open closed standard streams on /dev/null, and replace characters that a stream cannot encode."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # otherwise the next opened file would get this number
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    columns = os.environ.get("COLUMNS", "")
    if not columns.isdigit() or not int(columns):
        os.environ.pop("COLUMNS", None)


@contextmanager
def interrupt_on_termination() -> Iterator[list[int]]:
    """Handle the first SIGTERM inside the block as SIGINT, and ignore later ones. Yields the list of received signals.
    Main thread only."""
    received: list[int] = []

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
