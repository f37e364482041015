"""The bars of a sweep are as long as their shares, inside the drawing, whatever the values."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.orchestrator.reporting.charts import draw_importance


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


def test_nothing_to_draw_is_no_picture():
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
