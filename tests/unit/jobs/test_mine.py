"""Settings of mining that cannot work."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval import mine
from ratchet.jobs.retrieval.mine import Config, Inputs
from ratchet.orchestrator.job_interface.settings import validate


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"window": (5, 5)}, "window: 5,5 given"),
        ({"num_negatives": 0}, "num_negatives: 0 given"),
        ({"percent_of_positive": 95.0}, "percent_of_positive: 95.0 given; expected <= 2"),
    ],
)
def test_settings_are_checked_at_plan_time(config: dict[str, Any], said: str) -> None:
    none: Any = None
    with pytest.raises((InputError, DataError), match=said):
        mine.check(validate(Config, config, "mine"), Inputs(none, none, none, none))
