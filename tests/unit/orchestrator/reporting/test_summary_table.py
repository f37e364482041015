"""The final table: means over several steps, counts in titles, and columns without rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import RecipeError
from ratchet.orchestrator.job_interface import Job, Result
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.reporting.formatting import Estimate, format_value, print_table
from ratchet.orchestrator.reporting.report import render
from ratchet.orchestrator.reporting.run_data import RunReport, build_summary, list_headlines
from ratchet.orchestrator.reporting.run_summary import (
    build_summary_table,
    list_notes,
    list_unreported_metrics,
)
from ratchet.orchestrator.step import (
    Metric,
    Row,
    Step,
    Summary,
    check_outputs,
    list_goals,
    reachable,
    step,
)
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.manifest import Manifest


@dataclass(frozen=True)
class Config:
    size: int = 1


@dataclass(frozen=True)
class Inputs:
    before: Path | None = None


JOB = Job(
    "toy", version=1, config=Config, inputs=Inputs, run=lambda context, config, inputs: Result()
)
SPLIT = Job(
    "split",
    version=1,
    config=Config,
    inputs=Inputs,
    run=lambda context, config, inputs: Result(),
    outputs=lambda config: ("train", "test") if config.size else ("train",),
)


def make_plan(
    folder: Path, rows: Sequence[Row], results: Mapping[str, Mapping[str, Any] | None]
) -> Plan:
    plan = Plan(reachable(list_goals(Summary(rows))), Store.open(str(folder / "store")))
    (folder / "out").mkdir()
    for name, result in results.items():
        if result is not None:
            plan.steps[name].manifest = Manifest.build(folder / "out", result)
    return plan


def list_metrics(steps: Sequence[Step], name: str, count: str = "") -> list[Metric]:
    return [one.metric(name, count) for one in steps]


FOLDS = [0.25, 0.5, 0.625]


def fold_results(**others: Any) -> dict[str, dict[str, Any]]:
    return {f"fold{i}": {"metrics": {"map@25": value}, **others} for i, value in enumerate(FOLDS)}


@pytest.mark.slow
def test_several_metrics_are_shown_as_mean_and_deviation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folds = [step(f"fold{i}", JOB) for i in range(3)]
    rows = [Row("BM25", {"MAP@25": list_metrics(folds, "map@25")}, folds)]
    table = build_summary_table(make_plan(tmp_path, rows, fold_results()), Summary(rows))
    value = table["BM25"]["MAP@25"]
    assert isinstance(value, Estimate)
    assert (value, value.deviation) == (statistics.mean(FOLDS), statistics.stdev(FOLDS))
    assert format_value(value, "MAP@25") == "0.4583 ± 0.1909"
    report = RunReport("a", "b", "finished", 0.0, 1.0, "", [], rows=table, directions={"MAP@25": 1})
    assert "0.4583 ± 0.1909" in render(report, "html")
    assert "0.4583 ± 0.1909" in render(report, "md")
    assert list(list_headlines(report)) == ["MAP@25"]
    print_table(build_summary(report))
    assert "0.4583 ± 0.1909" in capsys.readouterr().out


def test_mean_waits_for_all_steps(tmp_path: Path) -> None:
    folds = [step(f"fold{i}", JOB) for i in range(3)]
    rows = [
        Row("one", {"x": list_metrics(folds[:1], "map@25")}),
        Row("all", {"x": list_metrics(folds, "map@25")}),
    ]
    table = build_summary_table(
        make_plan(tmp_path, rows, {**fold_results(), "fold2": None}), Summary(rows)
    )
    assert table["all"]["x"] is None
    assert format_value(table["one"]["x"]) == "0.2500"


def test_a_metric_with_an_interval_is_shown_with_it(tmp_path: Path) -> None:
    rows = [
        Row(
            "one",
            {"MAP@25": (one := step("one", JOB)).metric("map@25"), "rows": one.metric("rows")},
        )
    ]
    metrics = {"map@25": 0.25, "map@25/interval": 0.0312, "rows": 7}
    table = build_summary_table(
        make_plan(tmp_path, rows, {"one": {"metrics": metrics}}), Summary(rows)
    )
    assert format_value(table["one"]["MAP@25"]) == "0.2500 ± 0.0312"
    assert not isinstance(table["one"]["rows"], Estimate)


def test_the_note_of_some_folds_says_of_how_many(tmp_path: Path) -> None:
    folds = [step(f"fold{i}", JOB) for i in range(3)]
    rows = [Row("iteration 0", {"MAP@25": list_metrics(folds, "map@25")}, folds)]
    results = {**fold_results(note="kept the base"), "fold1": {"metrics": {"map@25": 0.5}}}
    plan = make_plan(tmp_path, rows, results)
    assert list_notes(plan, Summary(rows)) == {"iteration 0": "2 of 3: kept the base"}


def test_counts_stand_in_titles(tmp_path: Path) -> None:
    a, b = step("a", JOB), step("b", JOB)
    columns = ("seen", "unseen", "other")
    rows = [
        Row(
            one.name,
            {"all": one.metric("all")}
            | {c: one.metric(f"{c}/map", f"{c}/queries") for c in columns},
        )
        for one in (a, b)
    ]
    first = {
        "all": 0.5,
        "seen/map": 0.5,
        "seen/queries": 1200,
        "unseen/map": 0.25,
        "unseen/queries": 30,
    }
    second = {"all": 0.5, "seen/map": 0.75, "seen/queries": 1230}
    plan = make_plan(tmp_path, rows, {"a": {"metrics": first}, "b": {"metrics": second}})
    table = build_summary_table(plan, Summary(rows))
    assert table == {
        "a": {"all": 0.5, "seen": 0.5, "unseen": 0.25, "time": None},
        "b": {"all": 0.5, "seen": 0.75, "unseen": None, "time": None},
    }
    notes = list_notes(plan, Summary(rows))
    assert notes == {"seen": "1,200–1,230", "unseen": "30"}
    report = RunReport("a", "b", "finished", 0.0, 1.0, "", [], rows=table, notes=notes)
    titles = [column.name for column in build_summary(report).columns]
    assert titles == ["", "all", "seen (1,200–1,230)", "unseen (30)", "time"]
    assert list_unreported_metrics(plan, Summary(rows)) == []


def test_a_column_of_anything_but_metrics_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"Row 'a', column 'x': 3 given; expected step\.metric"):
        Row("a", {"x": [step("a", JOB).metric("n"), 3]})  # type: ignore[list-item]


def test_an_output_that_the_settings_exclude_is_refused() -> None:
    whole = step("split", SPLIT)
    used = step("used", JOB, before=whole["test"])
    check_outputs([whole, used])
    with pytest.raises(RecipeError, match=r"output 'test' given; expected one of train"):
        step("split", SPLIT, size=0)["test"]
    with pytest.raises(
        RecipeError,
        match=r"step used: input 'before' is 'test' of step split, .* writes train only; set",
    ):
        check_outputs([step("split", SPLIT, size=0), used])
