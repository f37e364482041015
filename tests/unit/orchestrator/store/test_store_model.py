"""Arbitrary interleavings of runs, repairs and collections, and failing operations; tests/soak has more of them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from store_model import BucketModel, StoreModel

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("model", [StoreModel, BucketModel])
def test_nothing_committed_is_lost_and_nothing_stale_is_reused(model: type[StoreModel]) -> None:
    quick = settings(
        max_examples=50,
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=True,  # which repeats these draws; each time there are others
        phases=(Phase.generate,),  # a smaller example would take minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(model, settings=quick)
