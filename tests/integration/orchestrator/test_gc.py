"""`gc` while a run is working, both as commands in processes of their own."""

from __future__ import annotations

from pathlib import Path

import command
import pytest
from store_contents import HOUR, addresses, age, named_by_a_run, started
from toy_runs import Toy
from waiting import wait_for

from ratchet.orchestrator.store import Store


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


@pytest.mark.soak
def test_the_inputs_of_a_running_step_stay(toy: Toy) -> None:
    """Takes half a minute: Ray starts once."""
    run = toy.start("--set", "seconds=0.5")
    store = Store.open(toy.store)
    wait_for(started(toy.store, "b"), "step b did not start")
    for _ in range(5):
        folder = named_by_a_run(store).folder
        folder.rename(folder.with_name(f"9{folder.name}"))  # newer than the one that is working
    age(toy.store, 25 * HOUR)
    status, output = command.run("gc", "--store", str(toy.store), "--yes", "--keep", "5")
    assert status == 0, output
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0, output
    assert set(addresses(toy.store)) == {"a", "b", "c", "other"}
    age(toy.store, 25 * HOUR)
    status, output = command.run("gc", "--store", str(toy.store), "--yes", "--keep", "5")
    assert status == 0, output
    assert addresses(toy.store) == {}
