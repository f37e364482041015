"""The state that a longer step continues from: the intact state of the longest shorter step."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_contents import made

from ratchet.orchestrator.execution.warm_start import WarmStartFamily
from ratchet.orchestrator.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store")
    for epochs in (1, 2, 4):
        step = f"step-{epochs}"
        made(store, step, str(epochs))
        (store.work(step) / "state").mkdir(parents=True)
        (store.work(step) / "state" / "weights").write_text(f"after {epochs}")
        WarmStartFamily("family", epochs).save_state(store, step, store.work(step) / "state")
    return store


def find(store: Store, value: float) -> tuple[str, list[str]]:
    state, damaged = WarmStartFamily("family", value).find_state(store, lambda step: None)
    return (state / "weights").read_text() if state else "", damaged


def test_the_longest_state_below_is_used(store: Store) -> None:
    expected = {1.0: "", 1.5: "after 1", 4.0: "after 2", 5.0: "after 4"}
    assert {value: find(store, value) for value in expected} == {value: (text, []) for value, text in expected.items()}


def test_a_damaged_state_is_removed_and_named_and_the_one_before_is_used(store: Store) -> None:
    (store.local("steps", "step-2", "state") / "weights").write_text("After 2")
    found, damaged = find(store, 4)
    assert found == "after 1"
    assert damaged == ["warm start: the state of step step-2 was not used: weights does not match its digest"]
    assert find(store, 4) == ("after 1", [])
    assert find(store, 5) == ("after 4", [])
