"""The job that fuses rankings: which weights it keeps, and what it writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ratchet.data import tables
from ratchet.jobs.predictions.fuse import Config, Inputs, run

DOCUMENTS = 20
QUERIES = 120


def write(folder: Path, places: Sequence[int], *, step: int) -> Path:
    """Write a ranking in which the only relevant document of query q, `d0`, is at place places[q], from 0. step: 1 or
    -1, the order of the others, so that they are not on top of two rankings."""
    rows = []
    for q, place in enumerate(places):
        names = [f"d{n}" for n in range(1, DOCUMENTS)][::step]
        names.insert(place, "d0")
        scores = 0.5 ** np.arange(DOCUMENTS)
        rows.append(
            {"id": f"q{q}", "text": "?", "documents": names, "scores": scores, "ranks": [place + 1]}
        )
    tables.write_shards(folder, rows, tables.RANKED, 50)
    return folder


def fuse(
    tmp_path: Path, first: Sequence[int], second: Sequence[int], group_size: int = 1, **values: Any
) -> dict[str, float]:
    common: dict[str, Any] = {"text": "?", "positives": ["d0"], "grades": [1]}
    rows = [{"id": f"q{q}", "group": f"g{q // group_size}", **common} for q in range(QUERIES)]
    tables.write_shards(tmp_path / "valid", rows, tables.GROUPED, 50)
    rankings = write(tmp_path / "first", first, step=1), write(tmp_path / "second", second, step=-1)
    context: Any = SimpleNamespace(out=tmp_path / "out")
    found = run(context, Config(**values), Inputs(tmp_path / "valid", rankings, rankings)).metrics
    return {name: float(value) for name, value in found.items()}


def test_systems_that_find_other_answers_are_fused(tmp_path: Path) -> None:
    halves = [0 if q % 2 else 12 for q in range(QUERIES)]
    found = fuse(tmp_path, halves, [12 - place for place in halves])
    assert found["weight/first"] == found["weight/second"] == 1
    assert found["valid/map@25"] == 1
    ranked = tables.read_shards(tmp_path / "out/ranking")
    assert [names[0] for names in ranked["documents"].to_pylist()] == ["d0"] * QUERIES
    assert len(ranked) == QUERIES


def test_what_one_query_gains_fuses_nothing(tmp_path: Path) -> None:
    """The gain is not above its standard error, which is as large with a single query."""
    first, second = [0] * (QUERIES - 1) + [1], [5] * (QUERIES - 1) + [0]
    found = fuse(tmp_path, first, second)
    assert (found["weight/first"], found["weight/second"]) == (1, 0)
    given = fuse(tmp_path, first, second, weights=(1.0, 1.0))
    assert given["valid/map@25"] == 1 > found["valid/map@25"]


@pytest.mark.parametrize(("group_size", "weight"), [(1, 1), (10, 0)])
def test_what_one_group_of_queries_gains_fuses_nothing(
    tmp_path: Path, group_size: int, weight: int
) -> None:
    first, second = [5] * 10 + [0] * (QUERIES - 10), [0] * 10 + [5] * (QUERIES - 10)
    found = fuse(tmp_path, first, second, group_size)
    assert (found["weight/first"], found["weight/second"]) == (1, weight)


def test_given_weights_are_used_as_they_are(tmp_path: Path) -> None:
    found = fuse(tmp_path, [0] * QUERIES, [5] * QUERIES, weights=(0.0, 1.0))
    assert (found["weight/first"], found["weight/second"]) == (0, 1)
    assert found["valid/map@25"] == round(1 / 6, 6)


def test_weights_of_a_fold_do_not_come_from_its_own_queries(tmp_path: Path) -> None:
    """In two of three folds of groups the second system is better, in the third one the first."""
    names = [f"g{q}" for q in range(QUERIES)]
    fold_of = {name: number % 3 for number, name in enumerate(sorted(names))}
    first = [0 if fold_of[name] == 2 else 6 for name in names]
    second = [6 if fold_of[name] == 2 else 0 for name in names]
    found = fuse(tmp_path, first, second, folds=3)
    ranked = tables.read_shards(tmp_path / "out/ranking").to_pylist()
    for name, row in zip(names, ranked, strict=True):
        place = row["documents"].index("d0")
        if fold_of[name] == 2:
            assert place > 0, "its weights are chosen on queries that the second system ranks best"
    maps = [1 / (row["documents"].index("d0") + 1) for row in ranked]
    assert found["valid/map@25"] == pytest.approx(np.mean(maps), abs=1e-6)
