"""The model of the store (tests/support/stores/store_model.py), 10,000 runs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from store_model import BucketModel, StoreModel


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", [StoreModel, BucketModel])
def test_nothing_committed_is_lost_and_nothing_stale_is_reused(model: type[StoreModel]) -> None:
    """Takes ten minutes each: 5,000 runs with new draws each time."""
    long = settings(
        max_examples=5_000,
        stateful_step_count=40,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(model, settings=long)
