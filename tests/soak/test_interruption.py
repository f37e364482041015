"""Drivers killed at random moments, and results whose files are deleted."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import damage
import pytest
from store_contents import addresses
from toy_runs import Toy


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    toy = Toy(tmp_path_factory.mktemp("undisturbed"))
    status, output = toy.run()
    assert status == 0, output
    return addresses(toy.store)


def test_kills_at_any_moment_change_no_byte(toy: Toy, undisturbed: dict[str, str]) -> None:
    """Takes minutes: Ray starts again after each kill."""
    draw = random.Random(0)
    for _ in range(4):
        process = toy.start("--set", "seconds=0.2")
        time.sleep(draw.uniform(0.3, 12.0))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    status, output = toy.run("--set", "seconds=0.2")
    assert status == 0, output
    assert addresses(toy.store) == undisturbed
    shards = [line for line in toy.done() if line.startswith("shard")]
    assert len(shards) <= len(set(shards)) + 8, "more was done again than one shard per step and kill"


def test_a_deleted_file_of_a_result_is_named_and_repaired_on_request(toy: Toy) -> None:
    """Takes half a minute: Ray starts three times."""
    assert toy.run()[0] == 0
    before = addresses(toy.store)
    file = toy.store / "objects" / before["a"] / "3.txt"
    damage.remove(file)
    status, output = toy.run()
    assert status != 0
    assert str(file) in output.replace("\n", "")
    assert "--repair" in output
    status, output = toy.run("--repair")
    assert status == 0, output
    assert {name: addresses(toy.store)[name] for name in before} == before
