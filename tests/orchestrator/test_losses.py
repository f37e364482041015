"""Machines that vanish, stop or slow down under a run: the main job on nodes of this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kept import events, results
from nodes import RAY, Nodes, environment_of, kill, processes, title

from orchestrator.store import Store
from orchestrator.store.lease import holders

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(1500)


def sets(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


RUN = ["run", "quickstart", *sets("questions=96", "epochs=1", "reranker=false")]
ONE = [*RUN, *sets("iterations=1")]
ON_TWO = ["embed.workers=2", "embed.cpus=1", "mine.workers=2", "mine.cpus=1"]
ON_TWO += ["finetune_embedder.workers=2", "finetune_embedder.cpus=1"]
LONGER = sets("questions=400", "epochs=3", "finetune_embedder.save_steps=10")
"""So that there is work to lose."""
SPREAD = sets(*ON_TWO)
TRAINED = ("iter0/finetune_embedder", "iter0/merge_embedder", "iter0/embed", "iter0/evaluate")
"""What is within noise, not the same to the byte, when training was interrupted."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[], Nodes]]:
    """Makes clusters whose head has no CPUs and soon notices that a node is gone; they end with the test."""
    made: list[Nodes] = []

    def make() -> Nodes:
        home = tmp_path / f"cluster-{len(made)}"
        home.mkdir()
        soon = {"initial_delay_ms": "1000", "period_ms": "1000", "failure_threshold": "5"}
        checks = {f"RAY_health_check_{name}": value for name, value in soon.items()}
        environment = environment_of(home, RAY_worker_niceness="0", **checks)
        made.append(Nodes(home, environment, "--num-cpus=0", "--include-dashboard=false"))
        return made[-1]

    yield make
    for nodes in made:
        nodes.end()


@pytest.fixture(scope="module")
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of the same run where nothing happened; with further settings, where a test gives them."""
    store = tmp_path_factory.mktemp("undisturbed")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "orchestrator", *ONE, *SPREAD, *getattr(request, "param", [])]
    command += ["--store", str(store)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return store


def start(nodes: Nodes, store: Path, *command: str) -> subprocess.Popen[str]:
    told = (store.parent / f"driver-{time.monotonic_ns()}.log").open("w")
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *command, "--store", str(store), "--address", nodes.address],
        cwd=ROOT,
        env=nodes.environment,
        stdout=told,
        stderr=told,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], store: Path, seconds: float = 500) -> None:
    try:
        process.wait(seconds)
    finally:
        kill(process)
    logs = "\n".join(path.read_text() for path in sorted(store.parent.glob("driver-*.log")))
    assert process.returncode == 0, logs[-6000:]


def until(what: Callable[[], Any], because: str, seconds: float = 300) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, because
        time.sleep(0.1)
    return found


def started(store: Path, step: str) -> Callable[[], bool]:
    return lambda: any((event["event"], event["step"]) == ("started", step) for event in events(store))


def checkpoints(store: Path) -> Callable[[], list[Path]]:
    return lambda: list(store.glob("steps/*/work/train/*/step-*"))


def check_same(store: Path, undisturbed: Path) -> None:
    """The same steps; the same bytes of all but training and what follows from it, which is as good."""
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
    assert holders(Store.open(store)) == [], "no lease is left"
    for step in store.glob("steps/*"):
        ends = [json.loads(path.read_text()) for path in step.glob("epochs/*/end")]
        assert sum("commit" in end for end in ends) == 1, "committed once"


def lost(store: Path, step: str) -> list[dict[str, Any]]:
    """What the result of a step says was lost, which the report says too."""
    found = results(store)[step].record["lost"]
    report = max(store.glob("runs/*/report.md"), key=lambda path: path.stat().st_mtime).read_text()
    assert not found or "Lost and done again" in report
    return found


@pytest.mark.soak
def test_a_node_lost_in_embedding_in_mining_and_in_training(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    nodes, store = cluster(), tmp_path / "store"
    victims = [nodes.add(), nodes.add(), nodes.add()]
    run = start(nodes, store, *ONE, *SPREAD, "--set", "finetune_embedder.save_steps=1")
    for step in ("zero_shot/embed_test", "iter0/mine", "iter0/finetune_embedder"):
        until(started(store, step), f"{step} was never started")
        if step == "iter0/finetune_embedder":
            until(checkpoints(store), "no checkpoint was made")
        else:
            time.sleep(4)
        kill(victims.pop(0))
        victims.append(nodes.add())  # as an autoscaler would
    ended(run, store)
    check_same(store, undisturbed)
    assert any(one["what"] == "training" for one in lost(store, "iter0/finetune_embedder"))


@pytest.mark.slow
def test_a_run_waits_a_while_for_the_machines_of_a_cluster_that_just_started(
    cluster: Callable[[], Nodes], tmp_path: Path
) -> None:
    nodes, store = cluster(), tmp_path / "store"
    run = start(nodes, store, *RUN, "--set", "iterations=0")
    until(lambda: "waiting up to" in "".join(log.read_text() for log in tmp_path.glob("driver-*.log")), "it says so")
    nodes.add()
    ended(run, store)
    assert "zero_shot/evaluate" in results(store)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["embed", "finetune_embedder"])
def test_a_machine_that_does_not_see_the_store_is_named(cluster: Callable[[], Nodes], tmp_path: Path, job: str) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("a folder cannot be hidden from a process here")
    nodes, store = cluster(), tmp_path / "store"
    store.mkdir()
    nodes.add("--labels=sees=yes")
    nodes.add("--labels=sees=no", without=store)
    run = start(nodes, store, *ONE, *sets("*.labels=sees=yes", f"{job}.labels=sees=no", "*.retries=0"))
    with suppress(subprocess.TimeoutExpired):
        run.wait(300)
    kill(run)
    said = " ".join("".join(log.read_text() for log in tmp_path.glob("driver-*.log")).split())
    assert run.returncode == 1, said
    assert re.search(rf"failed: step \S+/{job}\w*, machine 127\.0\.0\.3: ", said), said
    assert "that file system on every machine" in said, said


@pytest.mark.soak
def test_a_run_begins_on_fewer_machines_and_goes_on_with_fewer(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    nodes, store = cluster(), tmp_path / "store"
    nodes.add()
    least = [f"{job}.min_workers=1" for job in ("embed", "mine", "finetune_embedder")]
    least += ["finetune_embedder.zero_stage=0", "finetune_embedder.save_steps=1"]
    run = start(nodes, store, *ONE, *SPREAD, *(word for setting in least for word in ("--set", setting)))
    until(started(store, "iter0/mine"), "one machine is not enough")
    victim = nodes.add()
    until(checkpoints(store), "no checkpoint was made")
    kill(victim)  # none comes in its place
    ended(run, store)
    expected, found = results(undisturbed), results(store)
    assert found["iter0/evaluate"].manifest
    assert found["bm25/evaluate"].manifest == expected["bm25/evaluate"].manifest


@pytest.mark.soak
def test_two_nodes_lost_at_once(cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path) -> None:
    nodes, store = cluster(), tmp_path / "store"
    victims = [nodes.add(), nodes.add()]
    run = start(nodes, store, *ONE, *SPREAD)
    until(started(store, "zero_shot/embed_test"), "it was never started")
    time.sleep(6)
    for victim in victims:
        kill(victim)
    time.sleep(3)
    nodes.add()
    nodes.add()
    ended(run, store)
    check_same(store, undisturbed)


@pytest.mark.soak
def test_the_head_lost_and_a_new_cluster_on_the_same_store(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    first, store = cluster(), tmp_path / "store"
    first.add()
    first.add()
    run = start(first, store, *ONE, *SPREAD)
    until(started(store, "zero_shot/embed_test"), "it was never started")
    time.sleep(5)
    kill(run)  # it was on the head
    first.end()
    before = results(store)
    second = cluster()
    second.add()
    second.add()
    ended(start(second, store, *ONE, *SPREAD), store)
    after = results(store)
    assert all(after[name].attempt == commit.attempt for name, commit in before.items()), "done again"
    check_same(store, undisturbed)


@pytest.mark.soak
def test_a_notice_is_used_for_a_checkpoint(cluster: Callable[[], Nodes], tmp_path: Path) -> None:
    nodes, store = cluster(), tmp_path / "store"
    victim = nodes.add("--labels=name=victim")
    nodes.add()
    small = ["--set", "finetune_embedder.batch=4", "--set", "epochs=4", "--set", "iterations=1"]
    run = start(nodes, store, *RUN, *small, *SPREAD, "--set", "finetune_embedder.eval_steps=1000000")
    until(started(store, "iter0/finetune_embedder"), "it was never started")
    until(lambda: list(store.glob("steps/*/logs/*")), "training did not begin")
    time.sleep(8)
    assert not checkpoints(store)(), "none is due for minutes"
    warn(nodes, "victim", 40)
    made = until(checkpoints(store), "no checkpoint was made", 40)
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
    options: dict[str, Any] = {"env": nodes.environment, "capture_output": True, "text": True, "check": True}
    found = subprocess.run([sys.executable, "-c", find, nodes.address, name], **options).stdout.split()[-1]
    reason = ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=notice"]
    where = [f"--address={nodes.address}", f"--node-id={found}", f"--deadline-remaining-seconds={seconds}"]
    subprocess.run([RAY, "drain-node", *where, *reason], **options)


def workers_of(node: subprocess.Popen[bytes], name: str) -> list[int]:
    """Ray's processes on a node whose title has the name."""
    return [pid for pid in processes(node.pid) if name in title(pid)]


def working(node: subprocess.Popen[bytes]) -> list[int]:
    """Processes on a node that Ray keeps for somebody: neither idle nor Ray's own."""
    own = ("ray::IDLE", "Agent", "_StatsActor", "_AutoscalingCoordinator")
    return [pid for pid in workers_of(node, "ray::") if not any(part in title(pid) for part in own)]


def stands(node: subprocess.Popen[bytes]) -> bool:
    """Whether its raylet lives. (`ray start` goes on when that ended without an error.)"""
    return node.poll() is None and bool(workers_of(node, "raylet/raylet"))


@pytest.mark.soak
def test_a_worker_that_hangs_is_waited_for_only_so_long(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
    nodes, store = cluster(), tmp_path / "store"
    victim = nodes.add()
    nodes.add()
    short = ["--set", "finetune_embedder.timeout=20", "--set", "finetune_embedder.save_steps=1"]
    run = start(nodes, store, *ONE, *SPREAD, *short)
    until(checkpoints(store), "no checkpoint was made")
    for pid in workers_of(victim, "TrainWorker"):
        os.kill(pid, signal.SIGSTOP)  # it lives, and answers nobody
    ended(run, store)
    check_same(store, undisturbed)


@pytest.mark.soak
def test_a_slow_node_makes_a_run_slow_and_nothing_else(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path
) -> None:
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


@pytest.mark.parametrize(
    ("seed", "kills", "more", "undisturbed"),
    [
        pytest.param(1, 4, [], [], marks=pytest.mark.slow),
        pytest.param(2, 12, LONGER, LONGER, marks=pytest.mark.soak),
        pytest.param(3, 12, LONGER, LONGER, marks=pytest.mark.soak),
    ],
    indirect=["undisturbed"],
)
def test_chaos(
    cluster: Callable[[], Nodes], tmp_path: Path, undisturbed: Path, seed: int, kills: int, more: list[str]
) -> None:
    """Drivers, workers and nodes are killed one after the other; the same command goes on each time."""
    random, store, nodes = Random(seed), tmp_path / "store", cluster()
    workers = [nodes.add(), nodes.add()]
    command = [*ONE, *SPREAD, *sets("finetune_embedder.save_steps=2", "*.retries=20"), *more]
    run, done = start(nodes, store, *command), list[str]()
    begun = time.monotonic()
    pause, end = begun + 10, begun + 1200
    while run.poll() != 0:
        assert time.monotonic() < end, f"after {done} it does not end"
        workers = [node if stands(node) else nodes.add() for node in workers]  # as an autoscaler would
        if len(done) < kills and time.monotonic() > pause:
            done.append(what := random.choice(["driver", "worker", "worker", "node"]))
            pause = time.monotonic() + (random.uniform(20, 60) if more else random.uniform(6, 20))
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
    until(lambda: not any(working(node) for node in workers), "processes are left that work for nobody", 60)
    lives = [one for name in results(store) for one in lost(store, name)]
    again = {unit: sum(one["amount"] or 0 for one in lives if one["unit"] == unit) for unit in ("rows", "steps")}
    print(f"{len(done)} kills ({', '.join(done)}): {again}, {sum(one['seconds'] or 0 for one in lives):.1f} s again;")
    print(f"{took:.0f} s; undisturbed, with all cores on one node: {alone[-1] - alone[0]:.0f} s")
