"""The charts of a report: dots with error bars, and curves."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from ratchet.orchestrator.reporting.charts import draw_dots, draw_lines, draw_points
from ratchet.orchestrator.reporting.formatting import Estimate
from ratchet.orchestrator.reporting.run_data import Chart, Series


def read_texts(svg: str) -> list[str]:
    """The texts of a drawing, which must be well-formed XML."""
    root = ElementTree.fromstring(svg)
    return ["".join(one.itertext()).strip() for one in root.iter() if one.tag.endswith("text")]


def test_dots_have_error_bars_and_a_missing_value_has_no_dot() -> None:
    rows = {"a": {"map": Estimate(0.5, 0.1)}, "b": {"map": 0.9}, "c": {"map": None}}
    drawn = draw_dots(rows, "map", quiet=["b"])
    texts = read_texts(drawn)
    assert {"a  0.5000 ± 0.1000", "b  0.9000", "c  –"} <= set(texts)
    assert 'aria-label="map per row"' in drawn
    assert drawn.count("<use ") - draw_dots({"c": {"map": None}}, "map").count("<use ") >= 2


def test_colours_are_those_of_the_page() -> None:
    drawn = draw_dots({"a": {"map": 0.5}, "b": {"map": 0.9}}, "map", quiet=["b"])
    assert "var(--s0)" in drawn
    assert "var(--faint)" in drawn
    assert not re.search(r"#(0\d)\1\1", drawn)


def test_labels_are_escaped_and_of_any_script() -> None:
    rows = {"<b>&$x_1$\x1b[31m": {"map": 0.5}, "学校": {"map": 0.9}}
    texts = read_texts(draw_dots(rows, "map"))
    assert {"<b>&$x_1$  0.5000", "学校  0.9000"} <= set(texts)


@pytest.mark.slow
def test_curves_share_axes_and_have_a_legend() -> None:
    long = Series("long", range(1000), [math.sin(i) if i % 7 else math.nan for i in range(1000)])
    drawn = draw_lines(Chart("train", "step", "loss", [long, Series("short", [0, 999], [-2, 2])]))
    texts = read_texts(drawn)
    assert {"long", "short", "step"} <= set(texts)
    assert "nan" not in drawn
    many = [Series(f"s{number}", [0, 1], [0, number]) for number in range(30)]
    assert "and 23 more, in grey" in read_texts(draw_lines(Chart("train", "step", "loss", many)))


def test_single_points_are_not_drawn_and_equal_values_are() -> None:
    assert not draw_lines(Chart("train", "", "loss", [Series("a", [1], [1])]))
    assert not draw_lines(Chart("train", "", "loss", [Series("a", [1, 2], [math.nan, math.inf])]))
    assert draw_lines(Chart("train", "", "loss", [Series("a", [1, 2], [0.5, 0.5])]))


def test_drawings_are_the_same_bytes() -> None:
    chart = Chart("train", "step", "loss", [Series("a", [1, 2], [0.5, 0.25])])
    assert draw_lines(chart) == draw_lines(chart)


def test_ranks_are_points_with_the_number_of_queries_that_rose() -> None:
    series = Series("iter0", [5, 1, 1, 3, 40], [1, 1, 1, 9, 2])
    drawn = draw_lines(Chart("evaluate", "rank before", "rank by iter0", [series]))
    assert {"2 queries rose, 1 fell", "rank before", "1", "3", "10", "30"} <= set(read_texts(drawn))
    assert drawn.count("var(--s0)") >= 4, "a point for each pair of ranks"


def test_ranks_of_several_seeds_share_a_chart() -> None:
    seeds = [Series(f"seed{number}/iter0", [5, 1], [1, 1 + number]) for number in range(3)]
    drawn = draw_lines(Chart("evaluate", "rank before", "rank by iter0", seeds))
    assert "3 queries rose, 2 fell" in read_texts(drawn)


def test_a_quantity_that_begins_with_rank_is_a_line() -> None:
    series = Series("a", [0, 1, 2], [-0.5, 0.0, 0.5])
    assert "step" in read_texts(
        draw_lines(Chart("train", "step", "rank correlation of scores", [series]))
    )


def test_points_are_rows_with_both_columns() -> None:
    rows = {
        "small": {"map": Estimate(0.5, 0.1), "MB": 70.0},
        "base": {"map": 0.4, "MB": 70.0},
        "fused": {"map": 0.9, "MB": None},
    }
    texts = read_texts(draw_points(rows, "MB", "map", quiet=["base"]))
    assert {"small", "MB"} <= set(texts)
    assert not {"base", "fused"} & set(texts)
