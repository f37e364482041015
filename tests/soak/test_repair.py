"""Results whose files are deleted."""

from __future__ import annotations

from pathlib import Path

import damage
import pytest
from store_contents import addresses
from toy_runs import Toy


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)


def test_deleted_file_is_named_and_repaired(toy: Toy) -> None:
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
