"""The charts of a report: dots with error bars, and curves."""

from __future__ import annotations

import math

from ratchet.orchestrator.reporting.charts import (
    LABELS,
    LEFT,
    MAX_POINTS,
    RIGHT,
    VALUES,
    place_dots,
    place_lines,
)
from ratchet.orchestrator.reporting.formatting import Estimate
from ratchet.orchestrator.reporting.run_data import Chart, Series


def test_dots_have_error_bars_and_a_missing_value_has_no_dot():
    rows = {"a": {"map": Estimate(0.5, 0.1)}, "b": {"map": 0.9}, "c": {"map": None}}
    a, b, c = place_dots(rows, "map")
    assert LABELS < a.low < a.x < a.high < b.x == VALUES
    assert (a.text, b.text, c.text, c.x) == ("0.5000 ± 0.1000", "0.9000", "–", None)
    (alone,) = place_dots({"a": {"loss": 0.0}}, "loss")
    assert alone.x == LABELS


def test_curves_share_axes_and_long_ones_are_means_of_neighbours():
    long = Series("long", range(1000), [math.sin(i) if i % 7 else math.nan for i in range(1000)])
    plot = place_lines(Chart("train", "step", "loss", [long, Series("short", [0, 1000], [-2, 2])]))
    assert [line.label for line in plot.lines] == ["short", "long"]
    assert len(plot.lines[1].points.split()) <= MAX_POINTS
    assert [text for _, text in plot.x_ticks] == ["0", "500", "1000"]
    assert [text for _, text in plot.y_ticks] == ["-2", "-1", "0", "1", "2"]
    assert (plot.x_ticks[0][0], plot.x_ticks[-1][0]) == (LEFT, RIGHT)


def test_single_points_are_not_drawn_and_equal_values_are():
    assert place_lines(Chart("train", "", "loss", [Series("a", [1], [1])])) is None
    assert (
        place_lines(Chart("train", "", "loss", [Series("a", [1, 2], [math.nan, math.inf])])) is None
    )
    assert place_lines(Chart("train", "", "loss", [Series("a", [1, 2], [0.5, 0.5])])) is not None
