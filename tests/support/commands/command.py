"""The `ratchet` command in a process of its own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[3]

# A shell that runs the tests in the background lets them, and what they start, ignore SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def sets(*settings: str) -> list[str]:
    """Return the options of the command for these settings."""
    return [word for setting in settings for word in ("--set", setting)]


def start(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    output: int | IO[str] = subprocess.PIPE,
    file_limit: int | None = None,
) -> subprocess.Popen[str]:
    """Start the command in a session of its own, outside any Ray cluster. environment: variables to add. output:
    where both streams go. file_limit: largest file in bytes that the kernel allows; not in a process that is connected
    to Ray, whose threads do not survive the fork that a limit needs."""

    def limit() -> None:
        assert file_limit is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))

    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=ROOT,
        env=inherited | dict(environment or {}),
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=limit if file_limit is not None else None,
    )


def run(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    file_limit: int | None = None,
    timeout: float = 300,
) -> tuple[int, str]:
    """Run the command to its end. Return the exit status and the output."""
    process = start(*arguments, environment=environment, file_limit=file_limit)
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output
