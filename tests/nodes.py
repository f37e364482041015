"""Clusters of several nodes on this machine, each node with an address and processes of its own."""

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

RAY = Path(sys.executable).parent / "ray"


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment_of(home: Path, **more: str) -> dict[str, str]:
    """Without settings of the Ray that tests run in, and with this Python first in the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return kept | {"HOME": str(home), "PATH": path, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"} | more


def processes(root: int) -> list[int]:
    """A process and its descendants."""
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
    """Its command line; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def kill(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """As a machine goes: everything at once, without a word. Ray's processes are sessions of their own."""
    for pid in processes(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


class Nodes:
    """A head, and nodes that join it: processes that can be killed, as machines are lost.

    Every node has its own loopback address, else a driver may take a node that is to be lost for its own.
    """

    def __init__(self, home: Path, environment: Mapping[str, str], *options: str, port: int | None = None) -> None:
        self.home, self.environment, self.port = home, dict(environment), port or free_port()
        # Folders of their own: whoever looks for a running Ray is not to find this one. Short, for its sockets' names.
        self.place = tempfile.mkdtemp(prefix="ray-")
        self.all: list[subprocess.Popen[bytes]] = []
        self.head = self.start("--head", f"--port={self.port}", f"--temp-dir={self.place}", *options)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self, *options: str, cpus: int = 1, without: Path | None = None) -> subprocess.Popen[bytes]:
        """`without`: a folder that this node does not see."""
        return self.start(f"--address={self.address}", f"--num-cpus={cpus}", *options, without=without)

    def start(self, *options: str, without: Path | None = None) -> subprocess.Popen[bytes]:
        number = len(self.all) + 1
        told = self.home / f"node-{number}.log"
        command = [RAY, "start", "--block", f"--node-ip-address=127.0.0.{number}", "--dashboard-agent-listen-port=0"]
        if without is not None:
            hidden = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hidden, str(without), *command]
        with told.open("wb") as log:
            node = subprocess.Popen(
                [*command, *options], env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.all.append(node)
        until = time.monotonic() + 90
        while "Ray runtime started" not in told.read_text():
            assert time.monotonic() < until, told.read_text()
            assert node.poll() is None, told.read_text()
            time.sleep(0.2)
        return node

    def end(self) -> None:
        for node in reversed(self.all):
            kill(node)
        shutil.rmtree(self.place, ignore_errors=True)
