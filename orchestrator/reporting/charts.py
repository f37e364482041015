"""Charts as inline SVG: numbers per row of the summary, curves, and importances as bars.

The page's style sheet colours the charts (light, dark, print), and their text stays text. matplotlib would add 30 MB of
dependencies, and its charts cannot follow the reader's theme. Coordinates are CSS pixels of the chart's view box.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from ratchet.orchestrator.job_interface.terminal import clean
from ratchet.orchestrator.reporting.formatting import NOTHING, format_compact, shorten
from ratchet.orchestrator.reporting.run_data import Chart, Series, is_baseline, is_iteration, strip_iteration
from ratchet.orchestrator.reporting.tables import find_best, is_finite

WIDTH, HEIGHT = SIZE = 440, 270
COLOURS = 7
"""Number of series colours that the style sheet defines (`s0` ... `s6`). Further series are grey."""
_POINTS = 240
"""Maximum number of points per line. Longer lines are thinned, since a screen cannot show more points."""
_BARS = 20
_CHARACTER = 7.4
"""Approximate width of a character in a wide font, in pixels."""

Point = tuple[float, float | None]
Scale = Callable[[float], float]


def draw(template: str, *values: object) -> Markup:
    """Return an SVG element from a format string; the values are escaped."""
    return Markup(template).format(*(clean(value) if type(value) is str else value for value in values))


def draw_text(style: str, x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return draw('<text class="{}" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>', style, x, y, anchor, text)


def draw_chart(parts: Sequence[Markup], label: str, attributes: str = "", size: Sequence[float] = SIZE) -> Markup:
    """Return the SVG of `parts`. label: the text for screen readers."""
    head = draw('role="img" aria-label="{}" viewBox="0 0 {:g} {:g}"', label, *size)
    return draw("<svg {} {}>{}</svg>", head, attributes, Markup("").join(parts))


def make_scale(low: float, high: float, start: float, end: float) -> Scale:
    """Return the linear map from data (`low` to `high`) to pixels (`start` to `end`)."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def compute_ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Return equally spaced round numbers that enclose `low` to `high`. Steps are 1, 2, 2.5 or 5 times 10^n."""
    if high - low <= max(abs(low), abs(high), 1e-290) * 1e-9:
        if abs(high) > 1e-290:
            spread = abs(high) * 0.1
        else:
            spread = 1.0
        low = low - spread
        high = high + spread
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    unit = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.floor(low / unit + 1e-9)
    last = math.ceil(high / unit - 1e-9)
    found: list[float] = []
    for i in range(first, last + 1):
        found.append(float(f"{i * unit:.12g}"))
    return found


def format_tick(value: float) -> str:
    if abs(value) >= 1000:
        return format_compact(value)
    return f"{value or 0:.4g}"


def draw_summary(rows: Mapping[str, Mapping[str, float | None]], column: str) -> Markup:
    """Draw a column of the summary over its rows: a line joins iterations; baselines are drawn as levels."""
    values = [row.get(column) if is_finite(row.get(column)) else None for row in rows.values()]
    known = [value for value in values if value is not None]
    low = min(known)
    high = max(known)
    # The axis begins at zero, unless this would hide the differences: dots, unlike bars, do not need zero.
    marks = compute_ticks(0.0 if low >= 0 and high - low > 0.15 * high else low, high)
    left, right, top, bottom = 44.0, WIDTH - 8.0, 24.0, HEIGHT - 52.0  # the number over the highest dot is above `top`
    slot = (right - left) / len(rows)
    every = math.ceil(len(rows) / 9)
    y = make_scale(marks[0], marks[-1], bottom, top)
    winners = find_best(values, column)
    levels = []
    dots = []
    labels = []
    lines: dict[str, list[str]] = {strip_iteration(label): [] for label in rows if is_iteration(label)}
    styles = {kind: _choose_style(i) for i, kind in enumerate(lines)}
    for i, (label, value) in enumerate(zip(rows, values, strict=True)):
        x = left + slot * (i + 0.5)
        kind = strip_iteration(label)
        at_end = i in (0, len(rows) - 1)
        if i % every == 0 or at_end:
            for row, text in enumerate(_wrap(label, int(slot * min(every, 3) / 6.2))):
                labels.append(draw_text("tick", x, bottom + 17 + 14 * row, text))
        if value is None:
            dots.append(draw_text("missing", x, bottom - 8, NOTHING))
            continue
        if is_baseline(label):
            levels.append(draw('<path class="level" d="M{:.1f} {:.1f}H{:.1f}"/>', x, y(value), right))
        elif is_iteration(label):
            lines[kind].append(f"{x:.1f},{y(value):.1f}")
        if is_baseline(label):
            style = "base"
        else:
            style = styles.get(kind, "s0")
        circle = '<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{}: {} {:.4f}</title></circle>'
        dots.append(draw(circle, style, x, y(value), 6 if i in winners else 5, label, column, value))
        if every == 1 or i in winners or at_end:
            # The number keeps a gap from the dot and stands on the background, so no line runs through it.
            if abs(value) < 10:
                text = f"{value:.3f}"
            else:
                text = format_compact(value)
            dots.append(draw_text("value top" if i in winners else "value", x, y(value) - 11, text))
    line = '<polyline class="line {}" points="{}"/>'
    joined = [draw(line, styles[kind], " ".join(points)) for kind, points in lines.items() if len(points) > 1]
    listing = ", ".join(f"{label} {'none' if v is None else f'{v:.3f}'}" for label, v in zip(rows, values, strict=True))
    parts = [_draw_grid(marks, y, left, right), *levels, *joined, *dots, *labels]
    return draw_chart(parts, f"{column} per row: {listing}")


def draw_curves(chart: Chart) -> Markup:
    """Draw curves over shared axes. Long curves are drawn faint, with a smoothed line on top."""
    curves = [_sort_points(series) for series in chart.series]
    known = [(a, b) for points in curves for a, b in points if b is not None]
    if all(sum(b is not None for _, b in points) < 2 for points in curves):
        return Markup("")  # no line to see; the numbers are in the table of the step
    xs, ys = zip(*known, strict=True)
    x_marks = compute_ticks(min(xs), max(xs), 5)
    y_marks = compute_ticks(min(ys), max(ys))
    if max(xs) > min(xs):
        x_low = min(xs)
        x_high = max(xs)
    else:
        x_low = x_marks[0]
        x_high = x_marks[-1]
    left = 48.0
    right = WIDTH - 14.0
    top = 10.0
    bottom = HEIGHT - 44.0
    x = make_scale(x_low, x_high, left, right)
    y = make_scale(y_marks[0], y_marks[-1], bottom, top)
    parts = [_draw_grid(y_marks, y, left, right)]
    if all(a == int(a) for a in xs):  # there is no epoch 1.5
        x_marks = [mark for mark in x_marks if mark == int(mark)]
    for mark in x_marks:
        if x_low - 1e-9 * abs(x_low) <= mark <= x_high * (1 + 1e-9):
            parts.append(draw('<path class="mark" d="M{:.1f} {:.1f}v4"/>', x(mark), bottom))
            parts.append(draw_text("tick", x(mark), bottom + 17, format_tick(mark)))
    parts.append(draw_text("axis", (left + right) / 2, HEIGHT - 8, chart.x_label))
    # Grey ones first, so that those with a colour lie on top.
    for i in sorted(range(len(curves)), key=lambda i: (chart.series[i].strong, i < COLOURS, i)):
        points = _thin(curves[i])
        series = chart.series[i]
        style = _choose_style(i)
        if len(points) >= 40:
            parts.append(draw('<path class="raw {}" d="{}"/>', style, _format_path(points, x, y)))
        path = _format_path(_smooth(points) if len(points) >= 40 else points, x, y)
        if series.strong:
            weight = f"{style} strong"
        else:
            weight = style
        parts.append(draw('<path class="line {}" data-label="{}" d="{}"/>', weight, series.label, path))
        if len(points) <= 16:
            circle = '<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3"/>'
            parts += [draw(circle, style, x(a), y(b)) for a, b in points if b is not None]
    scale = draw('class="curves" data-x="{},{!r},{},{!r}"', left, x_low, right, x_high)
    scale += draw(' data-y="{},{!r},{},{!r}"', bottom, y_marks[0], top, y_marks[-1])
    named = ", ".join(series.label for series in chart.series[:COLOURS])
    return draw_chart(parts, f"{chart.y_label} against {chart.x_label or 'position'}: {named}", scale)


def draw_importance(shares: Mapping[str, float]) -> Markup:
    """Draw a bar per setting, the largest share first, at most `_BARS` bars; empty without positive shares."""
    known = sorted(((share, name) for name, share in shares.items() if share >= 0), key=lambda pair: -pair[0])[:_BARS]
    if not known or known[0][0] <= 0:
        return Markup("")
    left = 168.0
    row = 28.0
    bar = '<rect class="bar" x="{}" y="{:.1f}" width="{:.1f}" height="18" rx="2"><title>{}: {:.1f} %</title></rect>'
    parts = []
    for i, (share, name) in enumerate(known):
        y = 6 + row * i
        long = max(1.0, (WIDTH - left - 52) * share / known[0][0])
        parts.append(draw_text("label", left - 10, y + 14, shorten(name, int((left - 14) / _CHARACTER)), "end"))
        parts.append(draw(bar, left, y, long, name, 100 * share))
        parts.append(draw_text("value", left + long + 8, y + 14, f"{100 * share:.0f} %", "start"))
    listing = ", ".join(f"{name} {100 * share:.0f} %" for share, name in known)
    return draw_chart(parts, f"share of the variance per setting: {listing}", size=(WIDTH, 12 + row * len(known)))


def list_keys(series: Sequence[Series]) -> list[tuple[str, str]]:
    """Return the legend of a chart as (label, style class); empty for a single line."""
    if len(series) < 2:
        return []
    if len(series) > COLOURS:
        more = [(f"{len(series) - COLOURS:,} more", "rest")]
    else:
        more = []
    return [(s.label, _choose_style(i)) for i, s in enumerate(series[:COLOURS])] + more


def _choose_style(i: int) -> str:
    if i < COLOURS:
        return f"s{i}"
    return "rest"


def _sort_points(series: Series) -> list[Point]:
    """Return (x, y) sorted by x. A y that is not finite becomes None, which is a gap in the line."""
    pairs = []
    for a, b in zip(series.x, series.y, strict=False):
        if math.isfinite(a):
            pairs.append((float(a), float(b)))
    found: list[Point] = []
    for a, b in sorted(pairs, key=lambda p: p[0]):
        found.append((a, b if math.isfinite(b) else None))
    return found


def _thin(points: list[Point]) -> list[Point]:
    """Return about `_POINTS` points: the lowest, the highest and a gap of each group of neighbours, so spikes stay."""
    if len(points) <= _POINTS:
        return points
    size = math.ceil(len(points) / (_POINTS // 2))
    kept: list[Point] = []
    for begin in range(0, len(points), size):
        run = points[begin : begin + size]
        gaps = [p for p in run if p[1] is None]
        values = []
        for a, b in run:
            if b is not None:
                values.append((b, a))
        if values:
            ends = [(a, b) for b, a in (min(values), max(values))]
        else:
            ends = []
        kept += sorted({*ends, *gaps[:1]}, key=lambda p: p[0])
    return kept


def _smooth(points: list[Point]) -> list[Point]:
    """Smooth by local lines fitted over a tenth of the points (Cleveland's loess, uniform weights); gaps stay gaps.

    A moving mean would start too low and end too high on a falling loss.
    """
    half = max(3, len(points) // 20)
    smooth: list[Point] = []
    for i, (a, b) in enumerate(points):
        near = []
        for x, y in points[max(0, i - half) : i + half + 1]:
            if y is not None:
                near.append((x, y))
        mean_x = sum(x for x, _ in near) / max(1, len(near))
        mean_y = sum(y for _, y in near) / max(1, len(near))
        spread = sum((x - mean_x) ** 2 for x, _ in near)
        if spread:
            slope = sum((x - mean_x) * (y - mean_y) for x, y in near) / spread
        else:
            slope = 0.0
        smooth.append((a, None if b is None else mean_y + slope * (a - mean_x)))
    return smooth


def _format_path(points: list[Point], x: Scale, y: Scale) -> str:
    pieces = []
    pen = "M"
    for a, b in points:
        if b is not None:
            pieces.append(f"{pen}{x(a):.1f} {y(b):.1f}")
        if b is None:
            pen = "M"
        else:
            pen = "L"
    return "".join(pieces)


def _draw_grid(marks: Sequence[float], y: Scale, left: float, right: float) -> Markup:
    lines = []
    for i, mark in enumerate(marks):
        path = '<path class="{}" d="M{:.1f} {:.1f}H{:.1f}"/>'
        lines.append(draw(path, "grid" if i else "ground", left, y(mark), right))
        lines.append(draw_text("tick", left - 7, y(mark) + 4, format_tick(mark), "end"))
    return Markup("").join(lines)


def _wrap(label: str, width: int) -> list[str]:
    """Wrap a label into at most three lines of about `width` characters."""
    width = max(5, width)
    lines = textwrap.wrap(" ".join(label.split()), width, break_long_words=False, break_on_hyphens=False)
    found: list[str] = []
    for line in (*lines[:2], " ".join(lines[2:])):
        if line:
            found.append(shorten(line, width + 1))
    return found
