"""Settings of mining that cannot work."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ratchet.data.tables import Texts
from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval import mine
from ratchet.jobs.retrieval.implementation.mine import _suspects_line
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


def test_the_texts_of_suspects_are_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"d{i}" for i in range(5)]
    text_of = Texts(pa.table({"id": names, "text": [f"text {name}" for name in names]}))
    asked: list[list[str]] = []
    find = Texts.find

    def spy(texts: Texts, wanted: list[str]) -> list[str]:
        asked.append(wanted)
        return find(texts, wanted)

    monkeypatch.setattr(Texts, "find", spy)
    row = {"id": "q", "text": "?", "positives": ["d0"], "positive_scores": [0.5]}
    line = _suspects_line({**row, "suspects": names[1:], "suspect_scores": [0.9, 0.8, 0.7, 0.6]}, text_of)
    assert line["suspects"][3] == {"id": "d4", "text": "text d4", "similarity": 0.6}
    assert asked == [names[1:], ["d0"]]
