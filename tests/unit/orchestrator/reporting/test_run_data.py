"""The data of a report: best numbers, curves that share a chart, cases side by side."""

from __future__ import annotations

import math
from typing import Any

from ratchet.orchestrator.reporting.formatting import Estimate, find_best
from ratchet.orchestrator.reporting.report import render
from ratchet.orchestrator.reporting.run_data import (
    RunReport,
    StepReport,
    build_comparisons,
    build_summary,
    collect_cases,
    format_headline,
    group_curves,
)


def test_best_marks_only_what_stands_out():
    assert find_best([0.1, 0.3, None, 0.3, math.nan], 1) == {1, 3}
    assert find_best([0.1, 0.3], -1) == {0}
    assert (
        find_best([0.1, 0.3], 0) == find_best([0.2, 0.2], 1) == find_best([0.2, None], 1) == set()
    )


def make_report(rows: dict[str, Any], baselines: list[str]) -> RunReport:
    directions = {"MAP@25": 1, "loss": -1}
    return RunReport(
        "a",
        "b",
        "finished",
        0.0,
        1.0,
        "",
        [],
        rows=rows,
        baselines=baselines,
        directions=directions,
    )


def test_headline_compares_with_the_best_baseline() -> None:
    rows = {
        "BM25": {"MAP@25": 0.128},
        "zero-shot": {"MAP@25": 0.176},
        "iteration 0": {"MAP@25": 0.358},
    }
    baselines = ["BM25", "zero-shot"]
    report = make_report(rows, baselines)
    assert format_headline(report, "MAP@25") == "0.358 at iteration 0: +0.182 against zero-shot"
    worse = {"base": {"loss": 1.0}, "iteration 0": {"loss": 2.0}, "iteration 1": {"loss": 1.5}}
    said = format_headline(make_report(worse, ["base"]), "loss")
    assert said == "1.500 at iteration 1: +0.500 against base"
    intervals = {
        "zero-shot": {"MAP@25": Estimate(0.2, 0.03)},
        "iteration 0": {"MAP@25": Estimate(0.5, 0.04)},
    }
    said = format_headline(make_report(intervals, baselines), "MAP@25")
    assert said == "0.500 at iteration 0: +0.300 against zero-shot, more than noise"
    assert format_headline(report, "rows") == ""
    alone = make_report({"BM25": {"MAP@25": 0.1}}, baselines)
    assert format_headline(alone, "MAP@25") == ""


def found(step: str, heading: str, rank: int | None, query: str = "q") -> StepReport:
    """A step with one card: five answers, the right one at `rank`."""
    items = [{"text": f"answer {i}", "good": i == rank} for i in range(1, 6)]
    return StepReport(
        step, "e", "done", cases={"t": [{"title": query, "columns": {heading: items}}]}
    )


def test_cards_of_a_query_stand_side_by_side():
    steps = [
        found("z", "zero-shot", None),
        found("a", "iteration 0", 2),
        found("b", "iteration 1", 1),
    ]
    card, other = collect_cases([*steps, found("c", "zero-shot", 3, "another")])["t"]
    assert list(card.columns) == ["zero-shot", "iteration 0", "iteration 1"]
    assert (card.ranks, other.title, other.ranks) == ([None, 2, 1], "another", [3])


def test_of_many_columns_the_first_and_the_last_are_shown():
    (card,) = collect_cases([found(f"s{i}", f"iteration {i}", 1) for i in range(6)])["t"]
    assert list(card.columns) == ["iteration 0", "iteration 5"]


def test_curves_of_one_job_share_a_chart():
    curves = {
        "loss against step": {"x": [0, 1], "y": [2, 1]},
        "speed": {"x": [0], "y": [1]},
        "none": {"x": [], "y": []},
    }
    made = group_curves(
        [StepReport(f"iter{i}/train", "train", "done", curves=curves) for i in range(2)]
    )
    assert [(c.y_label, c.x_label, [s.label for s in c.series]) for c in made] == [
        ("loss", "step", ["iter0", "iter1"]),
        ("speed", "", ["iter0", "iter1"]),
    ]


def test_comparisons_show_what_changed_between_two_rows() -> None:
    rows = {
        "before": {"EM": 0.813, "GenTok": 92.9, "same": 5.3, "other": 1.0, "time": 3.0},
        "after": {"EM": 0.852, "GenTok": 84.4, "same": 5.3, "other": None, "time": 4.0},
    }
    data = RunReport(
        "toy", "1", "finished", 1.0, 2.0, "", [], rows=rows, comparisons=[("before", "after")]
    )
    table = build_comparisons(data)
    assert {column.name: column.texts for column in table.columns} == {
        "": ["before → after"],
        "EM": ["0.8130 → 0.8520 (+0.0390)"],
        "GenTok": ["92.9 → 84.4 (-8.5)"],
    }
    for kind in ("html", "md"):
        assert "92.9 → 84.4 (-8.5)" in render(data, kind)


def test_hidden_rows_are_left_out_of_the_summary() -> None:
    report = make_report({"BM25": {"MAP@25": 0.1}, "zero-shot": {"MAP@25": 0.2}}, ["BM25"])
    assert list(build_summary(report).columns[0].texts) == ["BM25", "zero-shot"]
    assert list(build_summary(report, ["BM25"]).columns[0].texts) == ["zero-shot"]
