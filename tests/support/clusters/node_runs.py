"""Runs of the quickstart recipe on several nodes of this machine, and failures of the nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

import command
import pytest
from command import sets
from nodes import Nodes, environment_of, kill, processes, title
from quickstart_runs import ONE_TRAINING
from store_contents import events, list_running_attempts, results
from waiting import wait_for

from ratchet.orchestrator.store import Store

# With folds, each of which would start Ray Train, the first checkpoint would come after minutes.
RUN = ["run", "quickstart", *sets("questions=96", "reranker=false", ONE_TRAINING)]

ONE = [*RUN, *sets("iterations=1", "finetune_embedder.epochs=1")]

ON_TWO = ["embed.workers=2", "embed.cpus=1", "mine.workers=2", "mine.cpus=1"]
ON_TWO += ["finetune_embedder.workers=2", "finetune_embedder.cpus=1"]

LONGER = sets("questions=400", "finetune_embedder.epochs=3", "finetune_embedder.save_steps=10")
"""Settings of a longer run, which has more work to lose."""

SPREAD = sets(*ON_TWO)

TRAINED = ("iter0/finetune_embedder", "iter0/merge_embedder", "iter0/embed", "iter0/evaluate")
"""Steps whose results differ within noise, instead of being equal to the byte, after an interrupted training."""


@contextmanager
def clusters(folder: Path) -> Iterator[Callable[[], Nodes]]:
    """Make clusters whose head has no CPUs and soon notices that a node is gone; they end with the context."""
    made: list[Nodes] = []

    def make() -> Nodes:
        home = folder / f"cluster-{len(made)}"
        home.mkdir()
        soon = {"initial_delay_ms": "1000", "period_ms": "1000", "failure_threshold": "5"}
        checks = {f"RAY_health_check_{name}": value for name, value in soon.items()}
        environment = environment_of(home, RAY_worker_niceness="0", **checks)
        made.append(Nodes(home, environment, "--num-cpus=0", "--include-dashboard=false"))
        return made[-1]

    try:
        yield make
    finally:
        for nodes in made:
            nodes.end()


def run_undisturbed(store: Path, *settings: str) -> Path:
    """Run the same steps without a failure, and return the store."""
    status, output = command.run(*ONE, *SPREAD, *settings, "--store", str(store), timeout=1100)
    assert status == 0, output
    return store


def start(nodes: Nodes, store: Path, *arguments: str) -> subprocess.Popen[str]:
    told = (store.parent / f"driver-{time.monotonic_ns()}.log").open("w")
    options = ("--store", str(store), "--address", nodes.address)
    return command.start(*arguments, *options, environment=nodes.environment, output=told)


def read_logs(folder: Path) -> str:
    return "".join(log.read_text() for log in sorted(folder.glob("driver-*.log")))


def ended(process: subprocess.Popen[str], store: Path, seconds: float = 500) -> None:
    try:
        process.wait(seconds)
    finally:
        kill(process)
    assert process.returncode == 0, read_logs(store.parent)[-6000:]


def checkpoints(store: Path) -> Callable[[], list[Path]]:
    return lambda: list(store.glob("steps/*/work/train/*/step-*"))


def check_same(store: Path, undisturbed: Path) -> None:
    """Check that both stores have the same steps with the same bytes; training and what follows equal within noise."""
    expected, found = results(undisturbed), results(store)
    assert expected.keys() == found.keys()
    for name, commit in expected.items():
        if not name.startswith(TRAINED):
            assert found[name].manifest == commit.manifest, name
    score = [
        Store.open(folder).manifest(all_of["iter0/evaluate"].manifest).result["metrics"]["map@25"]
        for folder, all_of in ((undisturbed, expected), (store, found))
    ]
    assert abs(score[0] - score[1]) < 0.05, score
    assert list_running_attempts(Store.open(store)) == [], "no lease is left"
    for step in store.glob("steps/*"):
        ends = [json.loads(path.read_text()) for path in step.glob("attempts/*/end")]
        assert sum("commit" in end for end in ends) == 1, "committed once"


def check_missing_store_is_named(nodes: Nodes, folder: Path, job: str) -> None:
    """Check that steps of a job fail with the cause on a machine that does not see the store."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("a folder cannot be hidden from a process here")
    store = folder / "store"
    store.mkdir()
    nodes.add("--labels=sees=yes")
    nodes.add("--labels=sees=no", without=store)
    run = start(
        nodes, store, *ONE, *sets("*.labels=sees=yes", f"{job}.labels=sees=no", "*.retries=0")
    )
    with suppress(subprocess.TimeoutExpired):
        run.wait(300)
    kill(run)
    said = " ".join(read_logs(folder).split())
    assert run.returncode == 1, said
    assert re.search(rf"failed: step \S+/{job}\w*, machine 127\.0\.0\.3: ", said), said
    assert "mount a shared file system on every machine" in said, said


def workers_of(node: subprocess.Popen[bytes], name: str) -> list[int]:
    """Return the ids of a node's processes whose command line contains the name."""
    return [pid for pid in processes(node.pid) if name in title(pid)]


def working(node: subprocess.Popen[bytes]) -> list[int]:
    """Return the ids of a node's Ray workers that are neither idle nor Ray's own."""
    own = ("ray::IDLE", "Agent", "_StatsActor", "_AutoscalingCoordinator")
    return [pid for pid in workers_of(node, "ray::") if not any(part in title(pid) for part in own)]


def is_alive(node: subprocess.Popen[bytes]) -> bool:
    """Return whether the raylet of a node lives. (`ray start` keeps running when it ends without an error.)"""
    return node.poll() is None and bool(workers_of(node, "raylet/raylet"))


def kill_at_random(
    nodes: Nodes,
    store: Path,
    undisturbed: Path,
    *,
    seed: int,
    kills: int,
    pause_s: tuple[float, float],
    more: list[str],
) -> None:
    """Kill drivers, workers and nodes one after the other; the same command is given again each time."""
    random = Random(seed)
    workers = [nodes.add(), nodes.add()]
    command = [*ONE, *SPREAD, *sets("finetune_embedder.save_steps=2", "*.retries=20"), *more]
    run, done = start(nodes, store, *command), list[str]()
    begun = time.monotonic()
    pause, end = begun + 10, begun + 1200
    while run.poll() != 0:
        assert time.monotonic() < end, f"after {done} it does not end"
        workers = [
            node if is_alive(node) else nodes.add() for node in workers
        ]  # as an autoscaler would
        if len(done) < kills and time.monotonic() > pause:
            done.append(what := random.choice(["driver", "worker", "worker", "node"]))
            pause = time.monotonic() + random.uniform(*pause_s)
            if what == "driver":
                kill(run)
            elif what == "node":
                kill(random.choice(workers))
            elif busy := [pid for node in workers for pid in working(node)]:
                with suppress(ProcessLookupError):
                    os.kill(random.choice(busy), signal.SIGKILL)
        if run.poll():
            run = start(nodes, store, *command)
        time.sleep(0.5)
    ended(run, store, 1)
    took, alone = time.monotonic() - begun, [event["t"] for event in events(undisturbed)]
    check_same(store, undisturbed)
    wait_for(
        lambda: not any(working(node) for node in workers),
        "processes are left that work for nobody",
        60,
    )
    print(f"{len(done)} kills ({', '.join(done)});")
    print(f"{took:.0f} s; undisturbed, with all cores on one node: {alone[-1] - alone[0]:.0f} s")
