"""The entry point: `ratchet`, or `python -m orchestrator`.

Little is imported here, so that ctrl-C and SIGTERM are answered while everything else is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ratchet.orchestrator.cli.termination import end_at_once, interrupt_on_termination


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit status: 0 done, 1 a step failed or a result is damaged, 2 bad input, 130
    interrupted, 141 the reader of the output is gone, 143 by SIGTERM."""
    with end_at_once():
        _prepare_streams()
        from ratchet.orchestrator.cli.commands import execute
    with interrupt_on_termination() as received:
        status = execute(sys.argv[1:] if argv is None else argv)
    return 143 if status == 130 and received else status


def _prepare_streams() -> None:
    """Open closed standard streams, and replace characters that a stream has no code for."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # else the next file, such as one of the store, would get this number
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    columns = os.environ.get("COLUMNS", "")
    if not columns.isdigit() or not int(columns):
        os.environ.pop("COLUMNS", None)
