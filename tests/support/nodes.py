"""Ray clusters with several nodes on this machine. Each node has its own address and processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

RAY = str(Path(sys.executable).parent / "ray")


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment_of(home: Path, **more: str) -> dict[str, str]:
    """Return the environment without settings of another Ray, and with this Python first in the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return kept | {"HOME": str(home), "PATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"} | more


def processes(root: int) -> list[int]:
    """Return the ids of a process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def title(pid: int) -> str:
    """Return the command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def kill(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kill a process and its descendants at once, as when a machine is lost. Ray starts sessions of its own."""
    for pid in processes(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


class Nodes:
    """A head node and nodes that join it, as processes that can be killed.

    Every node has its own loopback address. Otherwise a driver may take a node that will be killed for its own.
    """

    def __init__(self, home: Path, environment: Mapping[str, str], *options: str, port: int | None = None) -> None:
        self.home, self.environment, self.port = home, dict(environment), port or free_port()
        # A separate folder, so that nothing else finds this Ray; a short path, since socket names are limited.
        self.place = tempfile.mkdtemp(prefix="ray-")
        self.all: list[subprocess.Popen[bytes]] = []
        self.head = self.start("--head", f"--port={self.port}", f"--temp-dir={self.place}", *options)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self, *options: str, cpus: int = 1, without: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a node. `without` is a folder that it cannot see."""
        return self.start(f"--address={self.address}", f"--num-cpus={cpus}", *options, without=without)

    def start(self, *options: str, without: Path | None = None) -> subprocess.Popen[bytes]:
        number = len(self.all) + 1
        told = self.home / f"node-{number}.log"
        command = [RAY, "start", "--block", f"--node-ip-address=127.0.0.{number}", "--dashboard-agent-listen-port=0"]
        if without is not None:
            hidden = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hidden, str(without), *command]

        def launch() -> subprocess.Popen[bytes]:
            with told.open("wb") as log:
                node = subprocess.Popen(
                    [*command, *options], env=self.environment, stdout=log, stderr=log, start_new_session=True
                )
            self.all[number - 1 :] = [node]  # `end` kills it, started or not
            return node

        node, tries, until = launch(), 1, time.monotonic() + 180
        while "Ray runtime started" not in told.read_text():
            assert time.monotonic() < until, told.read_text()
            if node.poll() is not None:  # a raylet has 30 s to start, which a busy machine may not keep
                assert tries < 3, told.read_text()
                assert "timed out during startup" in told.read_text(), told.read_text()
                kill(node)
                node, tries = launch(), tries + 1
            time.sleep(0.2)
        return node

    def end(self) -> None:
        for node in reversed(self.all):
            kill(node)
        shutil.rmtree(self.place, ignore_errors=True)
