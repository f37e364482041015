"""Machines that vanish: the main job on a cluster of several nodes on this machine, of which some are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RAY = Path(sys.executable).parent / "ray"
COMMAND = ("run", "quickstart", "--set", "questions=150", "--set", "epochs=1", "--set", "reranker=false")
ON_TWO = ("--set", "embed.workers=2", "--set", "embed.cpus=1", "--set", "mine.workers=2", "--set", "mine.cpus=1")


class Nodes:
    """A head without CPUs, and nodes with one each: processes of their own that can be killed, as machines are lost."""

    def __init__(self, folder: Path) -> None:
        with closing(socket.socket()) as found:
            found.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{found.getsockname()[1]}"
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
            "HOME": str(folder),
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            # A machine that is gone is noticed soon.
            "RAY_health_check_initial_delay_ms": "1000",
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "4",
        }
        port = self.address.rpartition(":")[2]
        # A folder of its own: whoever looks for a running Ray is not to find this one. Short, for its sockets' names.
        self.place = Path(tempfile.mkdtemp(prefix="ray-"))
        place = f"--temp-dir={self.place}"
        self.all = [self._start("--head", f"--port={port}", "--num-cpus=0", "--dashboard-port=0", place)]
        time.sleep(4)

    def add(self, name: str = "any") -> subprocess.Popen[bytes]:
        node = self._start(f"--address={self.address}", "--num-cpus=1", f"--labels=name={name}")
        self.all.append(node)
        return node

    def warn(self, name: str, seconds: int) -> None:
        """What a cloud's notice becomes: the node of that name will be taken away."""
        find = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level=50); " + (
            "print(*[n['NodeID'] for n in ray.nodes() if n['Labels'].get('name') == sys.argv[2]])"
        )
        options: dict[str, Any] = {"env": self.environment, "capture_output": True, "text": True, "check": True}
        found = subprocess.run([sys.executable, "-c", find, self.address, name], **options).stdout.split()[-1]
        reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=notice"]
        where = [f"--address={self.address}", f"--node-id={found}", f"--deadline-remaining-seconds={seconds}"]
        subprocess.run([RAY, "drain-node", *where, *reason], **options)

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"node-{time.time_ns()}.log").open("wb") as log:
            return subprocess.Popen(
                [RAY, "start", "--block", *options],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> None:
        for node in reversed(self.all):
            kill(node)
        shutil.rmtree(self.place, ignore_errors=True)

    def run(self, store: Path, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *COMMAND, *more, "--store", str(store), "--address", self.address],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def kill(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """As a machine goes: everything at once, without a word. Ray's processes are sessions of their own."""
    for pid in family(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def family(root: int) -> list[int]:
    """A process and its descendants."""
    parent_of = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent_of[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parent_of.items() if parent == pid]
    return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    try:
        yield made
    finally:
        made.end()


def events(store: Path) -> list[dict[str, object]]:
    files = sorted(store.glob("runs/*/events.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def wait_until_started(store: Path, step: str) -> None:
    end = time.monotonic() + 300
    while not any((event["event"], event["step"]) == ("started", step) for event in events(store)):
        assert time.monotonic() < end, f"{step} was never started"
        time.sleep(0.1)


def committed(store: Path) -> dict[str, str]:
    from orchestrator.store import Store

    opened, found = Store.open(store), {}
    for step in store.glob("steps/*"):
        if (commit := opened.lookup(step.name)) is not None:
            opened.path(commit.manifest, full=True)
            found[commit.record["name"]] = commit.manifest
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    store = tmp_path_factory.mktemp("undisturbed")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    options = [*COMMAND, *ON_TWO, "--set", "iterations=0", "--store", str(store)]
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *options], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    return committed(store)


@pytest.mark.soak
@pytest.mark.parametrize("lost", ["one", "both"])
def test_nodes_lost_in_embedding_cost_a_shard_each(
    nodes: Nodes, tmp_path: Path, undisturbed: dict[str, str], lost: str
) -> None:
    victims = [nodes.add(), nodes.add()][: 1 if lost == "one" else 2]
    process = nodes.run(tmp_path / "store", *ON_TWO, "--set", "iterations=0")
    wait_until_started(tmp_path / "store", "zero_shot/embed_test")
    time.sleep(6)
    for victim in victims:
        kill(victim)
    time.sleep(3)
    nodes.add()  # as an autoscaler would
    if lost == "both":
        nodes.add()
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert undisturbed.items() <= committed(tmp_path / "store").items()


@pytest.mark.soak
def test_a_node_lost_in_training_costs_the_steps_since_the_checkpoint(nodes: Nodes, tmp_path: Path) -> None:
    victim = nodes.add()
    nodes.add()
    store = tmp_path / "store"
    two = ("--set", "finetune_embedder.workers=2", "--set", "finetune_embedder.cpus=1")
    process = nodes.run(store, *two, "--set", "iterations=1", "--set", "finetune_embedder.save_steps=1")
    wait_until_started(store, "iter0/finetune_embedder")
    end = time.monotonic() + 200
    while not list(store.glob("steps/*/work/train/*/step-*")):
        assert time.monotonic() < end, "no checkpoint was made"
        time.sleep(0.2)
    kill(victim)
    time.sleep(2)
    nodes.add()
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    assert "iter0/evaluate" in committed(store)


@pytest.mark.soak
def test_a_notice_is_used_for_a_checkpoint(nodes: Nodes, tmp_path: Path) -> None:
    victim = nodes.add("victim")
    nodes.add()
    store = tmp_path / "store"
    two = ("--set", "finetune_embedder.workers=2", "--set", "finetune_embedder.cpus=1")
    process = nodes.run(store, *two, "--set", "iterations=1", "--set", "finetune_embedder.batch=8")
    wait_until_started(store, "iter0/finetune_embedder")
    end = time.monotonic() + 200
    while not list(store.glob("steps/*/logs/*")):  # its curves: it trains
        assert time.monotonic() < end, "training did not begin"
        time.sleep(0.2)
    time.sleep(15)
    assert not list(store.glob("steps/*/work/train/*/step-*")), "none is due for minutes"
    nodes.warn("victim", 40)
    end = time.monotonic() + 40
    while not (made := list(store.glob("steps/*/work/train/*/step-*"))):
        assert time.monotonic() < end, "no checkpoint was made"
        time.sleep(0.2)
    number = int(made[0].name.split("-")[1])
    assert number > 0, "in the middle of the only epoch"
    time.sleep(3)
    kill(victim)
    nodes.add()
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    assert "iter0/evaluate" in committed(store)


@pytest.mark.soak
def test_a_lost_head_and_a_new_cluster_on_the_same_store(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    store = tmp_path / "store"
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = Nodes(tmp_path / "first")
    first.add()
    first.add()
    process = first.run(store, *ON_TWO, "--set", "iterations=0")
    wait_until_started(store, "zero_shot/embed_test")
    time.sleep(5)
    first.end()
    kill(process)  # it was on the head
    before = committed(store)
    second = Nodes(tmp_path / "second")
    try:
        second.add()
        second.add()
        output, _ = (again := second.run(store, *ON_TWO, "--set", "iterations=0")).communicate(timeout=400)
        assert again.returncode == 0, output
    finally:
        second.end()
    after = committed(store)
    assert before.items() <= after.items(), "a finished step was done again"
    assert undisturbed.items() <= after.items()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_chaos(tmp_path: Path, undisturbed: dict[str, str], seed: int) -> None:
    """Drivers, workers and nodes are killed one after the other; the same command goes on each time."""
    random, store = Random(seed), tmp_path / "store"
    nodes = Nodes(tmp_path)
    workers = [nodes.add(), nodes.add()]
    two = ("--set", "finetune_embedder.workers=2", "--set", "finetune_embedder.cpus=1")
    command = (*ON_TWO, *two, "--set", "iterations=1", "--set", "finetune_embedder.save_steps=2")
    process, killed, output = nodes.run(store, *command), list[str](), ""
    try:
        end = time.monotonic() + 900
        while process.returncode != 0:
            assert time.monotonic() < end, f"after {killed} it does not end: {output}"
            try:
                output, _ = process.communicate(timeout=random.uniform(6, 16) if len(killed) < 12 else 600)
            except subprocess.TimeoutExpired:
                killed.append(what := random.choice(["driver", "worker", "worker", "node"]))
                if what == "driver":
                    kill(process)
                elif what == "node":
                    gone = random.randrange(len(workers))
                    kill(workers[gone])
                    workers[gone] = nodes.add()
                else:
                    busy = [pid for node in workers for pid in family(node.pid) if "ray::" in name_of(pid)]
                    if busy:
                        os.kill(random.choice(busy), signal.SIGKILL)
                    continue
            if process.returncode not in (None, 0):
                process = nodes.run(store, *command)
        assert undisturbed.items() <= committed(store).items()
        assert "iter0/evaluate" in committed(store)
        for step in store.glob("steps/*"):
            ends = [json.loads(path.read_text()) for path in step.glob("epochs/*/end")]
            assert sum("commit" in one for one in ends) == 1, "committed once"
        assert not [pid for pid in family(os.getpid()) if str(store) in name_of(pid)], "no process is left"
    finally:
        kill(process)
        nodes.end()


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""
