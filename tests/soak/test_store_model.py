"""The model of the store (tests/support/stores/store_model.py): 10,000 runs, and whether it would notice faults."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from store_model import BucketModel, StoreModel

from ratchet.orchestrator import gc, store
from ratchet.orchestrator.store import backend

LONG = settings(
    max_examples=5_000,
    stateful_step_count=40,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", [StoreModel, BucketModel])
def test_nothing_committed_is_lost_and_nothing_stale_is_reused(model: type[StoreModel]) -> None:
    """Takes a quarter of an hour each: 5,000 runs with new draws each time."""
    run_state_machine_as_test(model, settings=LONG)


def keep_steps_only(kept: gc.Kept, run_log: Any, with_objects: bool = False) -> None:
    for step in run_log.steps():
        kept.steps.add(step["step_id"])


def remove_the_old(place: backend.Backend, kind: str, name: str, before: float) -> bool:
    folder = place.root / kind / name
    if not folder.exists():
        return False
    gone = folder.with_name(f".gone-{name}")
    folder.rename(gone)
    backend.remove_tree(gone)
    return True


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "gc does not ask who is running": (gc, "list_open_runs", lambda place: []),
    "gc keeps no inputs of running steps": (gc.Kept, "add_plan", keep_steps_only),
    "gc does not ask again before it removes": (backend.Backend, "remove_entry", remove_the_old),
    "a use does not restart the grace period": (store, "_touch", lambda folder: None),
    "a withdrawn result is found": (store.Store, "withdraw", lambda place, commit: None),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_store_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes minutes: the draws go on until one shows the fault."""
    monkeypatch.setattr(*FAULTS[fault])
    with pytest.raises(Exception):  # noqa: B017  # whatever the model says
        run_state_machine_as_test(StoreModel, settings=settings(LONG, phases=(Phase.generate,)))
