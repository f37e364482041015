"""A run on a fixed cluster and on an autoscaled cluster: its seconds, and the machine-seconds.

    python -m benchmarks.orchestrator.autoscaling [--machines 4] [--boot 60] [--idle 60] [--questions 96]

Ray's autoscaler works as it does in a cloud, but its fake provider starts processes on this machine instead of
machines, each with one CPU; before each start it waits as long as a cloud takes to boot one (`--boot`). The run is the
quickstart's: training and embedding use all machines for which they have work, and all other steps use one. The seconds
of a machine count from the request for it until it is gone. The machines of the fixed cluster are requested at the
beginning, and are gone when the run ends. The autoscaled cluster begins with the head alone, and the benchmark waits
until its last machine is gone. The head, which a cluster has in both cases, is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider

from tests.support.clusters.nodes import start_autoscaled

ROOT = Path(__file__).resolve().parents[2]
BOOT, LOG = "BENCHMARK_BOOT_SECONDS", "BENCHMARK_MACHINES_LOG"
"""Environment variables of the process that Ray's autoscaler runs in."""


class SlowProvider(FakeMultiNodeProvider):
    """Waits before it starts a node, and writes down when nodes are asked for and gone."""

    def create_node_with_resources_and_labels(
        self, node_config: Any, tags: Any, count: int, *rest: Any
    ) -> None:
        note("asked", count)
        time.sleep(float(os.environ[BOOT]))
        super().create_node_with_resources_and_labels(node_config, tags, count, *rest)

    def terminate_node(self, node_id: str) -> None:
        super().terminate_node(node_id)
        note("gone", 1)


def note(event: str, count: int) -> None:
    with open(os.environ[LOG], "a") as file:
        file.write(json.dumps({"at": time.time(), "event": event, "count": count}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--boot", type=float, default=60.0)
    parser.add_argument(
        "--idle",
        type=float,
        default=60.0,
        help="seconds after which a machine without work is gone",
    )
    parser.add_argument("--questions", type=int, default=96)
    given = parser.parse_args()
    print(f"{'':12}{'seconds of the run':>20}{'machine-seconds':>18}{'machines at most':>18}")
    for name, least in (("fixed", given.machines), ("autoscaled", 0)):
        with tempfile.TemporaryDirectory() as folder:
            seconds, events = measure(given, Path(folder), least)
        up, most = add_up(events)
        print(f"{name:12}{seconds:20.0f}{up:18.0f}{most:18}", flush=True)


def measure(
    given: argparse.Namespace, home: Path, least: int
) -> tuple[float, list[dict[str, Any]]]:
    """Run on a cluster of at least so many machines. Return the run's seconds, from when the cluster is asked for, and
    the events of its machines."""
    log = home / "machines.jsonl"
    log.touch()
    machine = {
        "resources": {"CPU": 1},
        "node_config": {},
        "min_workers": least,
        "max_workers": given.machines,
    }
    head = {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0}
    cluster = {
        "cluster_name": "benchmark",
        "max_workers": given.machines,
        "upscaling_speed": 100,
        "idle_timeout_minutes": given.idle / 60,
        "available_node_types": {"ray.head.default": head, "machine": machine},
    }
    ours = {
        BOOT: str(given.boot),
        LOG: str(log),
        "PYTHONPATH": str(ROOT),
        "RAY_worker_niceness": "0",
    }
    begun = time.time()
    nodes = start_autoscaled(
        home, cluster, provider="benchmarks.orchestrator.autoscaling.SlowProvider", **ours
    )
    try:
        if least:
            wait(lambda: count(read(log), "asked") >= least, 60)
        workers = [f"{job}.workers={given.machines}" for job in ("embed", "finetune_embedder")]
        settings = [
            f"questions={given.questions}",
            "reranker=false",
            "finetune_embedder.epochs=1",
            *workers,
        ]
        settings += [
            f"{job}.cpus=1"
            for job in ("embed", "finetune_embedder", "mine", "evaluate_retrieval", "merge")
        ]
        command = [
            sys.executable,
            "-m",
            "ratchet.orchestrator",
            "run",
            "quickstart",
            "--store",
            str(home / "store"),
        ]
        command += [
            "--address",
            nodes.address,
            *(word for value in settings for word in ("--set", value)),
        ]
        done = subprocess.run(
            command, env=nodes.environment, cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(done.stdout[-3000:] + done.stderr[-3000:])
        ended = time.time()
        print(done.stdout, file=sys.stderr)
        if least:
            return ended - begun, [*read(log), {"at": ended, "event": "gone", "count": least}]
        wait(lambda: count(read(log), "gone") == count(read(log), "asked"), given.idle + 180)
        return ended - begun, read(log)
    finally:
        nodes.end()


def add_up(events: list[dict[str, Any]]) -> tuple[float, int]:
    """Return the seconds that all machines were paid for, and their largest number."""
    up, now, most, before = 0.0, 0, 0, 0.0
    for one in sorted(events, key=lambda event: event["at"]):
        up += now * (one["at"] - before)
        now += one["count"] if one["event"] == "asked" else -one["count"]
        most, before = max(most, now), one["at"]
    return up, most


def read(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def count(events: list[dict[str, Any]], event: str) -> int:
    return sum(one["count"] for one in events if one["event"] == event)


def wait(ready: Any, seconds: float) -> None:
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            sys.exit(f"the cluster did not change for {seconds:.0f} s")
        time.sleep(0.5)


if __name__ == "__main__":
    main()
