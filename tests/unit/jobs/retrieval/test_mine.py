"""Mining: settings that cannot work, texts of suspects, and the index of candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data import tables
from ratchet.data.tables import Texts
from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval import mine
from ratchet.jobs.retrieval.mine import Config, Inputs
from ratchet.jobs.retrieval.mining import IndexBuilder, _suspects_line, choose_candidates
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
    line = _suspects_line(
        {**row, "suspects": names[1:], "suspect_scores": [0.9, 0.8, 0.7, 0.6]}, text_of
    )
    assert line["suspects"][3] == {"id": "d4", "text": "text d4", "similarity": 0.6}
    assert asked == [names[1:], ["d0"]]


def test_an_index_of_the_whole_corpus_needs_no_ids_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables.write_shards(tmp_path, [{"id": name, "text": name} for name in "abc"], tables.CORPUS, 2)
    schema = tables.embeddings_schema(2)
    rows = [{"id": name, "embedding": np.ones(2, np.float32)} for name in "abc"]
    tables.write_mapped(tmp_path / "shard-00000.arrow", pa.Table.from_pylist(rows, schema=schema))
    monkeypatch.setattr(tables, "DocumentRows", None)
    assert len(IndexBuilder(Config(min_recall=0.9), Inputs(*[tmp_path] * 4), "cpu").candidates) == 3


@pytest.mark.parametrize(
    ("candidates", "documents", "chosen"),
    [("labelled", 100, True), ("auto", 8, True), ("auto", 9, False)],
)
def test_labelled_candidates(candidates: Any, documents: int, chosen: bool) -> None:
    found = choose_candidates(
        Config(candidates=candidates, num_negatives=1), np.array([3, 7]), documents
    )
    assert (None if found is None else found.tolist()) == ([3, 7] if chosen else None)
