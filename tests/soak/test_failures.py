"""Nodes that are lost, hang or slow down during a run of the quickstart recipe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from node_runs import (
    LONGER,
    ONE,
    RUN,
    SPREAD,
    check_missing_store_is_named,
    check_same,
    checkpoints,
    clusters,
    ended,
    kill_at_random,
    run_undisturbed,
    start,
    workers_of,
)
from nodes import RAY, Nodes, kill
from store_contents import results, started
from waiting import wait_for

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[], Nodes]]:
    with clusters(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def long_undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_undisturbed(tmp_path_factory.mktemp("long"), *LONGER)


def test_a_node_lost_in_embedding_in_mining_and_in_training(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    """Takes minutes: a run of twelve steps on three nodes, which pauses at each of three losses."""
    nodes, store = cluster(), tmp_path / "store"
    victims = [nodes.add(), nodes.add(), nodes.add()]
    run = start(nodes, store, *ONE, *SPREAD, "--set", "finetune_embedder.save_steps=1")
    for step in ("zero_shot/embed_test", "iter0/mine", "iter0/finetune_embedder"):
        wait_for(started(store, step), f"{step} was never started")
        if step == "iter0/finetune_embedder":
            wait_for(checkpoints(store), "no checkpoint was made")
        else:
            time.sleep(4)
        kill(victims.pop(0))
        victims.append(nodes.add())  # as an autoscaler would
    ended(run, store)
    check_same(store, undisturbed)


def test_a_run_begins_on_fewer_machines_and_goes_on_with_fewer(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    """Takes minutes: a run of twelve steps, whose training starts again with fewer workers."""
    nodes, store = cluster(), tmp_path / "store"
    nodes.add()
    least = [f"{job}.min_workers=1" for job in ("embed", "mine", "finetune_embedder")]
    least += ["finetune_embedder.zero_stage=0", "finetune_embedder.save_steps=1"]
    run = start(
        nodes, store, *ONE, *SPREAD, *(word for setting in least for word in ("--set", setting))
    )
    wait_for(started(store, "iter0/mine"), "one machine is not enough")
    victim = nodes.add()
    wait_for(checkpoints(store), "no checkpoint was made")
    kill(victim)  # none comes in its place
    ended(run, store)
    expected, found = results(undisturbed), results(store)
    assert found["iter0/evaluate"].manifest
    assert found["bm25/evaluate"].manifest == expected["bm25/evaluate"].manifest


def test_two_nodes_lost_at_once(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    """Takes minutes: a run of twelve steps, and the time in which Ray notices the loss of nodes."""
    nodes, store = cluster(), tmp_path / "store"
    victims = [nodes.add(), nodes.add()]
    run = start(nodes, store, *ONE, *SPREAD)
    wait_for(started(store, "zero_shot/embed_test"), "it was never started")
    time.sleep(6)
    for victim in victims:
        kill(victim)
    time.sleep(3)
    nodes.add()
    nodes.add()
    ended(run, store)
    check_same(store, undisturbed)


def test_the_head_lost_and_a_new_cluster_on_the_same_store(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    """Takes minutes: two clusters are started, one after the other, and a run of twelve steps."""
    first, store = cluster(), tmp_path / "store"
    first.add()
    first.add()
    run = start(first, store, *ONE, *SPREAD)
    wait_for(started(store, "zero_shot/embed_test"), "it was never started")
    time.sleep(5)
    kill(run)  # it was on the head
    first.end()
    before = results(store)
    second = cluster()
    second.add()
    second.add()
    ended(start(second, store, *ONE, *SPREAD), store)
    after = results(store)
    assert all(after[name].attempt == commit.attempt for name, commit in before.items()), (
        "done again"
    )
    check_same(store, undisturbed)


def test_a_notice_is_used_for_a_checkpoint(cluster: Callable[[], Nodes], tmp_path: Path) -> None:
    """Takes minutes: training must be under way for a while before the notice, and go on after the loss."""
    nodes, store = cluster(), tmp_path / "store"
    victim = nodes.add("--labels=name=victim")
    nodes.add()
    small = [
        "--set",
        "finetune_embedder.batch_size=4",
        "--set",
        "finetune_embedder.epochs=4",
        "--set",
        "iterations=1",
    ]
    run = start(
        nodes, store, *RUN, *small, *SPREAD, "--set", "finetune_embedder.eval_steps=1000000"
    )
    wait_for(started(store, "iter0/finetune_embedder"), "it was never started")
    wait_for(lambda: list(store.glob("steps/*/logs/*")), "training did not begin")
    time.sleep(8)
    assert not checkpoints(store)(), "none is due for minutes"
    warn(nodes, "victim", 40)
    made = wait_for(checkpoints(store), "no checkpoint was made", 40)
    assert int(made[0].name.split("-")[1]) > 0
    time.sleep(3)
    kill(victim)
    nodes.add()
    ended(run, store)
    assert "iter0/evaluate" in results(store)


def warn(nodes: Nodes, name: str, seconds: int) -> None:
    """What a cloud's notice becomes: the node of that label will be taken away."""
    find = (
        "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level=50); "
        "print(*[n['NodeID'] for n in ray.nodes() if n['Labels'].get('name') == sys.argv[2]])"
    )
    options: dict[str, Any] = {
        "env": nodes.environment,
        "capture_output": True,
        "text": True,
        "check": True,
    }
    found = subprocess.run(
        [sys.executable, "-c", find, nodes.address, name], **options
    ).stdout.split()[-1]
    reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=notice"]
    where = [
        f"--address={nodes.address}",
        f"--node-id={found}",
        f"--deadline-remaining-seconds={seconds}",
    ]
    subprocess.run([RAY, "drain-node", *where, *reason], **options)


def test_a_worker_that_hangs_is_waited_for_only_so_long(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    """Takes minutes: the time-out of a hanging worker must pass, and training starts again."""
    nodes, store = cluster(), tmp_path / "store"
    victim = nodes.add()
    nodes.add()
    short = ["--set", "finetune_embedder.timeout=20", "--set", "finetune_embedder.save_steps=1"]
    run = start(nodes, store, *ONE, *SPREAD, *short)
    wait_for(checkpoints(store), "no checkpoint was made")
    for pid in workers_of(victim, "TrainWorker"):
        os.kill(pid, signal.SIGSTOP)  # it lives, and answers nobody
    ended(run, store)
    check_same(store, undisturbed)


def test_a_slow_node_makes_a_run_slow_and_nothing_else(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    """Takes minutes: one of two nodes runs at a fifth of its speed."""
    nodes, store = cluster(), tmp_path / "store"
    slow = nodes.add()
    nodes.add()
    run = start(nodes, store, *ONE, *SPREAD)
    end = time.monotonic() + 500
    while run.poll() is None and time.monotonic() < end:
        # Its workers have a fifth of the time.
        asleep = workers_of(slow, "ray::")
        for sign, seconds in ((signal.SIGSTOP, 0.8), (signal.SIGCONT, 0.2)):
            for pid in asleep:
                with suppress(ProcessLookupError):
                    os.kill(pid, sign)
            time.sleep(seconds)
    ended(run, store, 10)
    check_same(store, undisturbed)


def test_killed_drivers_workers_and_nodes_change_no_result(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    """Takes minutes: a whole run without failures, and one with four kills, on a cluster of three nodes."""
    kill_at_random(
        cluster(), tmp_path / "store", undisturbed, seed=1, kills=4, pause_s=(6, 20), more=[]
    )


@pytest.mark.parametrize("seed", [2, 3])
def test_many_kills_change_no_result(
    cluster: Callable[[], Nodes], tmp_path: Path, long_undisturbed: Path, seed: int
) -> None:
    """Takes up to ten minutes per seed: twelve kills, 20 to 60 seconds apart."""
    kill_at_random(
        cluster(),
        tmp_path / "store",
        long_undisturbed,
        seed=seed,
        kills=12,
        pause_s=(20, 60),
        more=LONGER,
    )


def test_training_without_the_store_is_named(cluster: Callable[[], Nodes], tmp_path: Path) -> None:
    """Takes a minute: a cluster of three nodes, and all steps before the training, which fails."""
    check_missing_store_is_named(cluster(), tmp_path, "finetune_embedder")
