"""The pictures of a sweep show every trial where its values are, inside the drawing, whatever the values."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.orchestrator.reporting.sweep_charts import draw_importance, draw_parallel, list_parallel_keys, make_axis
from ratchet.orchestrator.reporting.sweep_data import Line


def inside(svg: str) -> ElementTree.Element:
    """The drawing; fails if a coordinate is outside of its view box."""
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    for element in root.iter():
        path = re.findall(r"[ML]([-\d.e]+) ([-\d.e]+)", element.attrib.get("d", ""))
        points = [(float(x), float(y)) for x, y in path]
        if "x" in element.attrib:
            x, y = float(element.attrib["x"]), float(element.attrib["y"])
            points.append((x, y))
            points.append((x + float(element.attrib.get("width", 0)), y + float(element.attrib.get("height", 0))))
        for x, y in points:
            assert 0 <= x <= width
            assert 0 <= y <= height
    return root


def drawn(svg: str) -> list[tuple[str, list[tuple[float, float]]]]:
    """(classes, points) of each trial, from the lowest layer to the top."""
    found = re.findall(r'<g class="trial ([^"]+)">.*?<path class="run" d="M([^"]+)"', svg, re.DOTALL)
    return [(style, [tuple(map(float, p.split())) for p in path.split("L")]) for style, path in found]


def test_a_logarithmic_axis_spaces_powers_evenly():
    made = make_axis("loguniform(1e-5, 1e-1)", [1e-4, 1e-3, 1e-2])
    assert [made.place(v) for v in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert [text for _, text in made.marks] == ["1e-05", "0.0001", "0.001", "0.01", "0.1"]
    assert make_axis("loguniform(-1, 1)", [-0.5, 0.5]).scale == "linear"


def test_a_range_has_its_bounds_as_ends_and_a_choice_is_evenly_spaced():
    made = make_axis("uniform(0, 2)", [0.5, 1.0])
    assert [made.place(v) for v in (0, 0.5, 2)] == [0, 0.25, 1]
    made = make_axis("grid(1, 10, 1000)", [10, 1000, 1])
    assert [made.place(v) for v in (1, 10, 1000)] == [0, 0.5, 1]
    made = make_axis("choice(none, kl_div, mse)", ["mse", "kl_div", None, "none"])
    assert [made.place(v) for v in ("none", "kl_div", "mse")] == [1, 0.5, 0]  # read from the top down
    assert make_axis("choice(a)", ["a", "a"]).place("a") == make_axis("uniform(3, 3)", [3, 3]).place(3) == 0.5


def test_the_better_end_of_the_metric_is_at_the_top_and_the_winner_on_top_of_all():
    lines = [Line(f"t{i}", {"a": i}, i / 10, winner=i == 2, stopped=i == 1, defaults=i == 0) for i in range(4)]
    for maximize in (True, False):
        found = dict(drawn(draw_parallel({"a": "uniform(0, 3)"}, lines, "m", maximize)))
        assert list(found)[-1].endswith(" winner")
        assert [style for style in found if "stopped" in style] == ["q1 stopped" if maximize else "q3 stopped"]
        heights = {style: points[-1][1] for style, points in found.items()}
        strongest, weakest = (next(v for s, v in heights.items() if s.startswith(f"q{q}")) for q in (4, 0))
        assert strongest < weakest  # y grows downwards
    assert "stopped early" in [label for label, *_ in list_parallel_keys(lines)]
    assert "stopped early" not in [label for label, *_ in list_parallel_keys(lines[2:])]


def test_a_trial_without_the_setting_lies_below_the_axis():
    lines = [Line("a", {"rate": 1e-3}, 0.1), Line("b", {"rate": None}, 0.2), Line("c", {"rate": 1e-5}, 0.3)]
    svg = draw_parallel({"rate": "loguniform(1e-5, 1e-3)"}, lines, "m", True)
    heights = [points[0][1] for _, points in sorted(drawn(svg), key=lambda d: d[1][-1][1], reverse=True)]
    assert heights[0] < heights[2] < heights[1]
    assert ">default</text>" in svg


# The text `inf` is drawn as it is; only numbers must not show as such.
TEXTS = st.text(max_size=30).filter(lambda text: not re.search(r"\bnan\b|\binf\b", text))
VALUES = st.one_of(
    st.lists(st.one_of(st.none(), st.floats(-1e299, 1e299), st.integers(-9, 9)), min_size=1, max_size=12),
    st.lists(st.one_of(st.none(), TEXTS), min_size=1, max_size=12),
)
WRITTEN = st.sampled_from(
    ["loguniform(1e-5, 1e-3)", "uniform(0, 1)", "choice(1, 2)", "randint(1, 9)", "1, 2", "", "log("]
)


@given(VALUES, st.lists(st.floats(-1e9, 1e9), min_size=12, max_size=12), WRITTEN, st.booleans())
def test_any_values_can_be_drawn(values, metric, written, maximize):
    lines = [Line(f"<{i}>", {"<a>": v, "b": None}, m) for i, (v, m) in enumerate(zip(values, metric, strict=False))]
    svg = draw_parallel({"<a>": written, "b": ""}, lines, "<m>", maximize)
    root = inside(svg)
    assert len(root.findall("g")) == len(values)
    assert sorted(t.text for t in root.iter("title")) == sorted(line.tip for line in lines)
    assert not re.search(r"\bnan\b|\binf\b", svg)


def test_nothing_to_draw_is_no_picture():
    assert draw_parallel({"a": ""}, [], "m", True) == draw_parallel({}, [Line("t", {}, 1.0)], "m", True) == ""
    assert draw_importance({}) == draw_importance({"a": math.nan, "b": 0.0}) == ""


@given(st.dictionaries(st.text(max_size=60), st.floats(0, 1), max_size=30))
def test_bars_are_as_long_as_their_shares(shares):
    svg = draw_importance(shares)
    if svg:
        bars = inside(svg).findall("rect")
        expected = sorted(shares.values(), reverse=True)[:20]
        full = float(bars[0].attrib["width"])
        assert [float(bar.attrib["width"]) for bar in bars] == pytest.approx(
            [max(1.0, full * share / expected[0]) for share in expected], abs=0.1
        )
