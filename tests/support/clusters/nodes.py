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
from typing import Any

import yaml

FAKE = "ray.autoscaler._private.fake_multi_node.node_provider"
"""The module of Ray's fake provider, which starts processes instead of machines."""
HEAD = "f" * 51 + "00000"
"""The node id that it has for the head."""

RAY = str(Path(sys.executable).parent / "ray")


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment_of(home: Path, **more: str) -> dict[str, str]:
    """Return the environment without settings of another Ray, and with this Python first in the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return (
        kept
        | {
            "HOME": str(home),
            "PATH": path,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
        }
        | more
    )


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

    def __init__(
        self, home: Path, environment: Mapping[str, str], *options: str, port: int | None = None
    ) -> None:
        self.home, self.environment, self.port = home, dict(environment), port or free_port()
        # A separate folder, so that nothing else finds this Ray; a short path, since socket names are limited.
        self.place = tempfile.mkdtemp(prefix="ray-")
        self.all: list[subprocess.Popen[bytes]] = []
        self.head = self.start(
            "--head", f"--port={self.port}", f"--temp-dir={self.place}", *options
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(
        self, *options: str, cpus: int = 1, without: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a node. `without` is a folder that it cannot see.

        Its folder is its own: a node that unpacks a working directory removes the one of that name first."""
        folder = f"--temp-dir={self.place}/{len(self.all) + 1}"
        return self.start(
            f"--address={self.address}", f"--num-cpus={cpus}", folder, *options, without=without
        )

    def start(self, *options: str, without: Path | None = None) -> subprocess.Popen[bytes]:
        number = len(self.all) + 1
        told = self.home / f"node-{number}.log"
        command = [
            RAY,
            "start",
            "--block",
            f"--node-ip-address=127.0.0.{number}",
            "--dashboard-agent-listen-port=0",
            # Free ports: another Ray on this machine takes the default ones too, and its workers may be first.
            "--min-worker-port=0",
            "--max-worker-port=0",
        ]
        if without is not None:
            hidden = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", hidden, str(without), *command]

        def launch() -> subprocess.Popen[bytes]:
            with told.open("wb") as log:
                node = subprocess.Popen(
                    [*command, *options],
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            self.all[number - 1 :] = [node]  # `end` kills it, started or not
            return node

        node, tries, until = launch(), 1, time.monotonic() + 180
        while "Ray runtime started" not in told.read_text():
            assert time.monotonic() < until, told.read_text()
            if (
                node.poll() is not None
            ):  # a raylet has 30 s to start, which a busy machine may not keep
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


def start_autoscaled(
    home: Path,
    cluster: Mapping[str, Any],
    *,
    provider: str = f"{FAKE}.FakeMultiNodeProvider",
    **environment: str,
) -> Nodes:
    """Start the head of a cluster with Ray's autoscaler, on the fake provider or a subclass of it. cluster: of a
    cluster.yaml what says how many nodes of which types there are; the type of the head is `ray.head.default`."""
    port, file = free_port(), home / "fake.yaml"
    own = {
        "launch_multiple": True,
        "head_node_id": HEAD,
        "gcs_address": f"127.0.0.1:{port}",
        "use_node_id_as_ip": True,
    }
    own |= {"type": "external", "module": provider}
    own |= {"disable_node_updaters": True, "disable_launch_config_check": True}
    kinds = (
        "initialization",
        "setup",
        "head_setup",
        "worker_setup",
        "head_start_ray",
        "worker_start_ray",
    )
    unused: dict[str, Any] = {f"{kind}_commands": [] for kind in kinds} | {
        "cluster_synced_files": []
    }
    unused |= {"file_mounts": {}, "auth": {}, "docker": {}}
    file.write_text(
        yaml.safe_dump({**cluster, **unused, "head_node_type": "ray.head.default", "provider": own})
    )
    fake = {
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": "1",
    }
    fake |= {
        "RAY_CLOUD_INSTANCE_ID": HEAD,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD,
        "RATCHET_CLUSTER": str(file),
    }
    options = ["--include-dashboard=false", "--num-cpus=0", f"--autoscaling-config={file}"]
    return Nodes(home, environment_of(home, **fake, **environment), *options, port=port)
