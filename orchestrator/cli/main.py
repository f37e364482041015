"""The entry point: `ratchet`, or `python -m orchestrator`.

This module imports little, so that ctrl-C and SIGTERM are handled while the rest is imported.
"""

import os
import sys
from collections.abc import Sequence

from ratchet.orchestrator.cli.termination import end_at_once, interrupt_on_termination


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
