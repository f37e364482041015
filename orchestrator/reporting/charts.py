"""Charts of the reports: positions of lines, dots and ticks in pixels, which `charts.html.j2` draws as SVG.

matplotlib would add 30 MB of dependencies, and its charts cannot follow the reader's colours (light, dark, print).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ratchet.orchestrator.reporting.formatting import format_value
from ratchet.orchestrator.reporting.run_data import Chart, Series
from ratchet.orchestrator.reporting.tables import is_finite

WIDTH, HEIGHT = 440, 270
LEFT, RIGHT, TOP, BOTTOM = 48.0, 426.0, 10.0, 226.0
"""Edges of the area of the curves."""
LABELS, VALUES = 150.0, 340.0
"""Edges of the area of the dots, between their labels and their values."""
COLOURS = 7
"""Number of series colours that the style sheet defines. Further series are grey."""
MAX_POINTS = 240
"""Maximum number of points per line. Points of longer lines are means of neighbours."""


@dataclass(frozen=True)
class Axis:
    """A linear map from data (`low` to `high`) to pixels (`start` to `end`)."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        return round(
            self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1
        )


@dataclass(frozen=True)
class Dot:
    """A value of a row. low, high: the ends of its error bar."""

    label: str
    text: str
    x: float | None = None
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Line:
    """A curve. points: `x,y x,y ...`."""

    label: str
    style: str
    points: str


@dataclass(frozen=True)
class Plot:
    """Curves with their axes. ticks: (pixel, text)."""

    lines: Sequence[Line]
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]


def place_dots(rows: Mapping[str, Mapping[str, float | None]], column: str) -> list[Dot]:
    """Place the values of a column of the summary, one row below the other, with their deviations as error bars."""
    known = []
    for row in rows.values():
        value = row.get(column)
        if value is not None and is_finite(value):
            deviation = getattr(value, "deviation", None) or 0.0
            known += [value - deviation, value + deviation]
    low = min(known)
    high = max(known)
    if 0 <= low < high / 2:  # an axis from zero, unless this would hide the differences
        low = 0.0
    axis = Axis(low, high if high > low else low + 1, LABELS, VALUES)
    dots = []
    for label, row in rows.items():
        value = row.get(column)
        if value is None or not is_finite(value):
            dots.append(Dot(label, format_value(None)))
            continue
        deviation = getattr(value, "deviation", None) or 0.0
        ends = axis.place(value - deviation), axis.place(value + deviation)
        dots.append(Dot(label, format_value(value, column), axis.place(value), *ends))
    return dots


def place_lines(chart: Chart) -> Plot | None:
    """Place the curves of a chart over shared axes; None if no curve has two points."""
    curves = []
    for series in chart.series:
        curves.append(_select_points(series))
    if max(map(len, curves)) < 2:
        return None
    xs = [x for points in curves for x, _ in points]
    ys = [y for points in curves for _, y in points]
    x_ticks = _choose_ticks(min(xs), max(xs))
    y_ticks = _choose_ticks(min(ys), max(ys))
    x_axis = Axis(x_ticks[0], x_ticks[-1], LEFT, RIGHT)
    y_axis = Axis(y_ticks[0], y_ticks[-1], BOTTOM, TOP)
    lines = []
    for i, points in enumerate(curves):
        pixels = " ".join(f"{x_axis.place(x)},{y_axis.place(y)}" for x, y in points)
        lines.append(Line(chart.series[i].label, f"s{i}" if i < COLOURS else "rest", pixels))
    return Plot(
        lines[::-1],  # the first ones lie on top
        [(x_axis.place(tick), f"{tick:.4g}") for tick in x_ticks],
        [(y_axis.place(tick), f"{tick:.4g}") for tick in y_ticks],
    )


def _select_points(series: Series) -> list[tuple[float, float]]:
    """Return the finite points of a curve by x, and means of neighbours if there are more than `MAX_POINTS`."""
    points = []
    for x, y in zip(series.x, series.y, strict=False):
        if math.isfinite(x) and math.isfinite(y):
            points.append((x, y))
    points.sort()
    size = math.ceil(len(points) / MAX_POINTS)
    means = []
    for begin in range(0, len(points), size or 1):
        xs, ys = zip(*points[begin : begin + size], strict=True)
        means.append((statistics.fmean(xs), statistics.fmean(ys)))
    return means


def _choose_ticks(low: float, high: float) -> list[float]:
    """Return round numbers (multiples of 1, 2 or 5 times 10^n) that enclose `low` to `high`."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-290):
        high = low + (abs(low) or 1.0)
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    unit = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.floor(low / unit + 1e-9)
    last = math.ceil(high / unit - 1e-9)
    found: list[float] = []
    for i in range(first, max(last, first + 1) + 1):
        found.append(i * unit)
    return found
