"""Charts draw every point at the right place, for any data."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from ratchet.orchestrator.reporting.charts import compute_ticks, draw_curves, draw_summary
from ratchet.orchestrator.reporting.run_data import Chart, Series


def drawn_points(svg: str) -> list[tuple[float, float]]:
    """The data behind the strong line of a chart, by the scale that the page's script uses."""
    scales = [list(map(float, re.search(rf'data-{axis}="([^"]+)"', svg)[1].split(","))) for axis in "xy"]
    path = re.search(r'class="line [^"]*"[^>]* d="([^"]+)"', svg)[1]
    pairs = re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path)
    return [
        tuple(lo + (float(p) - a) / (b - a) * (hi - lo) for p, (a, lo, b, hi) in zip(pair, scales, strict=True))
        for pair in pairs
    ]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=16))
def test_a_curve_is_drawn_where_its_data_are(ys):
    svg = draw_curves(Chart("j", "step", "y", [Series("a", list(range(len(ys))), ys)]))
    ElementTree.fromstring(svg)
    spread = max(max(ys) - min(ys), abs(max(ys)) * 0.2, 1e-6)
    for (x, y), (i, value) in zip(drawn_points(svg), enumerate(ys), strict=True):
        assert abs(x - i) < 0.01 * len(ys)
        assert abs(y - value) < 0.02 * spread + 1e-9


def test_a_gap_in_a_curve_stays_a_gap():
    svg = draw_curves(Chart("j", "step", "loss", [Series("a", [0, 1, 2, 3], [1.0, math.nan, 3.0, math.inf])]))
    assert re.search(r'class="line [^"]*"[^>]* d="([^"]+)"', svg)[1].count("M") == 2
    assert "nan" not in svg
    assert "inf" not in svg
    assert draw_curves(Chart("j", "step", "loss", [Series("a", [0], [math.nan])])) == ""
    assert (
        draw_curves(Chart("j", "step", "loss", [Series("a", [0], [1.0]), Series("b", [1, 2], [1.0, math.nan])])) == ""
    )


def test_a_long_curve_keeps_its_spike():
    ys = [1.0] * 50_000
    ys[31_337] = 9.0
    svg = draw_curves(Chart("j", "step", "loss", [Series("a", list(range(50_000)), ys)]))
    raw = re.search(r'class="raw [^"]*" d="([^"]+)"', svg)[1]
    assert len(svg) < 40_000
    assert min(float(y) for y in re.findall(r"[ML][-\d.]+ ([-\d.]+)", raw)) < 60


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_ticks_enclose_and_are_few(low, width):
    marks, slack = compute_ticks(low, low + width), 1e-6 * (abs(low) + width)
    assert marks[0] <= low + slack
    assert marks[-1] >= low + width - slack
    assert 2 <= len(marks) <= 8
    assert marks == sorted(set(marks))


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=1, max_size=30).filter(
        lambda v: any(x is not None for x in v)
    )
)
def test_any_summary_can_be_drawn(values):
    rows = {f"iteration {i}" if i % 3 else f"BM25 <{i}>": {"MAP@25": v} for i, v in enumerate(values)}
    drawn = ElementTree.fromstring(draw_summary(rows, "MAP@25"))
    assert len(drawn.findall("circle")) == sum(v is not None for v in values)
