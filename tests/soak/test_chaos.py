"""Drivers and garbage collections that are killed again and again at random moments, one or two at a time.

The collections keep nothing but what running drivers need: all times are set back before each of them.

RATCHET_KILLS=1000 RATCHET_SEED=7 python -m pytest -n 0 -s tests/soak/test_chaos.py      # a night
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import command
import pytest
from nodes import Nodes, environment_of
from store_contents import HOUR, addresses, age, list_running_attempts, started
from toy_runs import Toy
from waiting import wait_for

from ratchet.orchestrator.store import Store

KILLS = int(os.environ.get("RATCHET_KILLS", "40"))
SEED = int(os.environ.get("RATCHET_SEED", "0"))

COLLECT = ("gc", "--keep", "0", "--grace-period", "0.02", "--yes")

pytestmark = pytest.mark.timeout(60 + 20 * KILLS)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster that outlives the drivers, so that a killed one costs two seconds and not ten."""
    home = tmp_path_factory.mktemp("cluster")
    nodes = Nodes(home, environment_of(home), "--num-cpus=4", "--include-dashboard=false")
    try:
        yield nodes.address
    finally:
        nodes.end()


def make_toy(folder: Path) -> Toy:
    folder.mkdir()
    return Toy(folder)


def test_a_driver_that_was_suspended_finds_the_results_of_another(
    address: str, tmp_path: Path
) -> None:
    """Takes three minutes: the lease of the suspended driver has to expire."""
    settings = ("--set", "seconds=1", "--address", address)
    toy = make_toy(tmp_path / "suspended")
    first = toy.start(*settings)
    wait_for(started(toy.store, "b"), "it was never started", 60)
    time.sleep(2)
    os.killpg(first.pid, signal.SIGSTOP)  # its step goes on, and nobody takes the result
    status, output = toy.run(*settings, timeout=240)
    assert status == 0, output
    made = addresses(toy.store)
    assert set(made) == {"a", "b", "c", "other"}
    os.killpg(first.pid, signal.SIGCONT)
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 0, output
    assert addresses(toy.store) == made
    assert list_running_attempts(Store.open(toy.store)) == []
    status, output = command.run("verify", "--store", str(toy.store))
    assert status == 0, output


def kill_some(running: list[subprocess.Popen[str]]) -> tuple[int, str]:
    """Kill the processes that still run. Return how many did, and what all of them had printed."""
    alive = [process for process in running if process.poll() is None]
    for process in alive:
        os.killpg(process.pid, signal.SIGKILL)
    return len(alive), "".join(process.communicate()[0] for process in running)


def test_kills_at_any_moment_change_no_byte(address: str, tmp_path: Path) -> None:
    """Takes about six seconds per kill."""
    settings = ("--set", "seconds=0.15", "--address", address)
    toy = make_toy(tmp_path / "undisturbed")
    status, output = toy.run(*settings)
    assert status == 0, output
    undisturbed, draw, kills, rounds, removed = addresses(toy.store), random.Random(SEED), 0, 0, 0
    while kills < KILLS:
        rounds += 1
        toy, before, collected = make_toy(tmp_path / f"round-{rounds}"), kills, False
        for _ in range(draw.randint(2, 8)):
            running = [toy.start(*settings) for _ in range(draw.choice([1, 1, 2]))]
            time.sleep(draw.uniform(0.3, 6.0))
            if draw.random() < 0.3 and (toy.store / "FORMAT").exists():
                collected = True
                age(toy.store, 2 * HOUR)
                running.append(command.start(*COLLECT, "--store", str(toy.store)))
                time.sleep(draw.uniform(0.3, 4.0))
            killed, said = kill_some(running)
            kills += killed
            removed += sum(
                map(int, re.findall(r"^([\d,]+) things, .* removed$", said, re.MULTILINE))
            )
        where = f"seed {SEED}, round {rounds}, after {kills - before} kills"
        status, output = toy.run(*settings, timeout=900)  # beside other work
        assert status == 0, f"{where}\n{output}"
        assert addresses(toy.store) == undisturbed, where
        assert list_running_attempts(Store.open(toy.store)) == [], where
        shards = [line for line in toy.done() if line.startswith("shard")]
        again = len(shards) - len(set(shards))
        assert collected or again <= 2 * (kills - before), (
            f"{where}: more was done again than one shard of each running step"
        )
        for verb in ("verify", "status", "gc"):
            status, output = command.run(verb, "--store", str(toy.store))
            assert status == 0, f"{where}\n{output}"
        age(toy.store, 2 * HOUR)
        status, output = command.run(*COLLECT, "--store", str(toy.store))
        assert status == 0, f"{where}\n{output}"
        assert addresses(toy.store) == {}, where
        print(f"{kills} kills in {rounds} rounds", flush=True)
    assert removed or KILLS < 100, "no collection removed anything beside a driver"
    print(
        f"\n{kills} kills in {rounds} rounds, seed {SEED}; {removed} results and steps removed meanwhile"
    )
