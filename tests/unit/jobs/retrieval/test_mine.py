"""Mining: settings that cannot work, and candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval import mine
from ratchet.jobs.retrieval.mine import Config, Inputs
from ratchet.jobs.retrieval.mining import choose_candidates
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.job_interface.settings import validate


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"window": (5, 5)}, "window: 5,5 given"),
        ({"num_negatives": 0}, "num_negatives: 0 given"),
        ({"percent_of_positive": 95.0}, "percent_of_positive: 95.0 given; expected <= 2"),
        (
            {"min_score": 0.9, "max_score": 0.1},
            "min_score: 0.9 given, with max_score=0.1; expected at most max_score",
        ),
    ],
)
def test_settings_are_checked_at_plan_time(config: dict[str, Any], said: str) -> None:
    none: Any = None
    with pytest.raises((InputError, DataError), match=said):
        mine.check(validate(Config, config, "mine"), Inputs(none, none, none, none), {})


@pytest.mark.parametrize(
    ("window", "documents", "fits"),
    [((60, 80), 60, False), ((59, 80), 60, True), ((2, 200), 2, True)],
)
def test_a_window_behind_the_corpus_is_refused_at_plan_time(
    window: tuple[int, int], documents: int, fits: bool
) -> None:
    none: Any = None
    arguments = (
        Config(window=window),
        Inputs(none, none, none, none),
        {"corpus": Result({"documents": documents})},
    )
    if fits:
        assert mine.check(*arguments) == Result({})
    else:
        with pytest.raises(
            InputError, match=r"mine\.window: 60,80 given, for 60 documents; expected ranks in the"
        ):
            mine.check(*arguments)


@pytest.mark.parametrize(
    ("candidates", "documents", "chosen"),
    [("labelled", 100, True), ("auto", 8, True), ("auto", 9, False)],
)
def test_labelled_candidates(candidates: Any, documents: int, chosen: bool) -> None:
    found = choose_candidates(
        Config(candidates=candidates, num_negatives=1), np.array([3, 7]), documents
    )
    assert (None if found is None else found.tolist()) == ([3, 7] if chosen else None)
