"""Two kinds of chart as inline SVG: numbers per row of the summary, and curves.

Made by hand because the page's own style sheet can then colour them (light, dark, print) and the text stays text;
matplotlib would add 30 MB of dependencies for pictures that cannot follow the reader's theme.
All texts are escaped here. Coordinates are CSS pixels of the drawing's own view box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from orchestrator.report.markup import escaped as _e
from orchestrator.report.parts import Chart, Series, best, family, is_baseline, is_round
from orchestrator.show import NOTHING, compact, shortened

WIDTH, HEIGHT = 440, 270
COLOURS = 7
"""Series colours that the style sheet defines (`s0` ... `s6`); further series are drawn grey."""
_POINTS = 240
"""More points than this per line are thinned: a screen cannot show them."""


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) that cover `low` to `high`; the ends enclose it."""
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"ticks: from {low} to {high}; expected finite numbers")
    if high - low <= max(abs(low), abs(high), 1e-290) * 1e-9:
        spread = abs(high) * 0.1 if abs(high) > 1e-290 else 1.0
        low, high = low - spread, high + spread
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    unit = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / unit + 1e-9), math.ceil(high / unit - 1e-9)
    return [float(f"{i * unit:.12g}") for i in range(first, last + 1)]


def rows_chart(rows: Mapping[str, Mapping[str, float | None]], column: str) -> str:
    """One column of the summary over its rows: rounds of a kind joined by a line, baselines as levels to beat."""
    labels = list(rows)
    values = [rows[label].get(column) for label in labels]
    known = [float(v) for v in values if v is not None and math.isfinite(v)]
    low, high = min(known), max(known)
    # A dot says as much far from zero; zero is left out only where it would hide every difference.
    start = 0.0 if low >= 0 and high - low > 0.15 * high else low
    marks = ticks(start, high)
    left, right, top, bottom = 44.0, WIDTH - 8.0, 24.0, HEIGHT - 44.0  # above `top` a number over the highest dot
    slot = (right - left) / len(labels)

    def x(i: int) -> float:
        return left + slot * (i + 0.5)

    def y(value: float) -> float:
        return bottom - (value - marks[0]) / (marks[-1] - marks[0]) * (bottom - top)

    parts = [_grid(marks, y, left, right)]
    winners = best(values, column)
    sparse = len(labels) > 9
    families = list(dict.fromkeys(family(label) for label in labels if is_round(label)))
    colour = {name: f"s{i}" if i < COLOURS else "rest" for i, name in enumerate(families)}
    joined: dict[str, list[tuple[float, float]]] = {name: [] for name in colour}
    for i, v in enumerate(values):
        if v is not None and math.isfinite(v) and is_round(labels[i]):
            joined[family(labels[i])].append((x(i), y(v)))
    for i, value in enumerate(values):
        if value is not None and math.isfinite(value) and is_baseline(labels[i]):
            parts.append(f'<path class="level" d="M{x(i):.1f} {y(value):.1f}H{right:.1f}"/>')
    for name, points in joined.items():
        if len(points) > 1:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            parts.append(f'<polyline class="line {colour[name]}" points="{path}"/>')
    for i, (label, value) in enumerate(zip(labels, values, strict=True)):
        if value is None or not math.isfinite(value):
            parts.append(text_at("missing", x(i), bottom - 8, NOTHING))
            continue
        kind = "dot base" if is_baseline(label) else f"dot {colour.get(family(label), 's0')}"
        tip = f"<title>{_e(label)}: {_e(column)} {value:.4f}</title>"
        parts.append(
            f'<circle class="{kind}" cx="{x(i):.1f}" cy="{y(value):.1f}" r="{6 if i in winners else 5}">{tip}</circle>'
        )
        if not sparse or i in winners or i in (0, len(labels) - 1):
            weight = "value top" if i in winners else "value"
            # The number keeps a gap from the dot and stands on the background, so no line runs through it.
            parts.append(text_at(weight, x(i), y(value) - 11, _value(value)))
    every = math.ceil(len(labels) / 9)
    for i, label in enumerate(labels):
        if i % every == 0 or i == len(labels) - 1:
            for line, text in enumerate(_wrapped(label, int(slot * min(every, 3) / 6.2))):
                parts.append(text_at("tick", x(i), bottom + 17 + 14 * line, text))
    listing = ", ".join(
        f"{label} {'none' if v is None else f'{v:.3f}'}" for label, v in zip(labels, values, strict=True)
    )
    return drawing(parts, f"{column} per row: {listing}")


def curves_chart(chart: Chart) -> str:
    """Curves over shared axes. Long, noisy ones are drawn faint, with a smoothed line on top."""
    finite = [(s, _finite_points(s)) for s in chart.series]
    xs = [a for _, points in finite for a, b in points if b is not None]
    ys = [b for _, points in finite for _, b in points if b is not None]
    if not xs:
        return ""
    x_marks, y_marks = ticks(min(xs), max(xs), 5), ticks(min(ys), max(ys))
    x_low, x_high = (min(xs), max(xs)) if max(xs) > min(xs) else (x_marks[0], x_marks[-1])
    left, right, top, bottom = 48.0, WIDTH - 14.0, 10.0, HEIGHT - 44.0

    def x(value: float) -> float:
        return left + (value - x_low) / (x_high - x_low) * (right - left)

    def y(value: float) -> float:
        return bottom - (value - y_marks[0]) / (y_marks[-1] - y_marks[0]) * (bottom - top)

    parts = [_grid(y_marks, y, left, right)]
    if all(a == int(a) for a in xs):  # there is no epoch 1.5
        x_marks = [mark for mark in x_marks if mark == int(mark)]
    for mark in x_marks:
        if x_low - 1e-9 * abs(x_low) <= mark <= x_high * (1 + 1e-9):
            parts.append(f'<path class="mark" d="M{x(mark):.1f} {bottom:.1f}v4"/>')
            parts.append(text_at("tick", x(mark), bottom + 17, tick(mark)))
    parts.append(text_at("axis", (left + right) / 2, HEIGHT - 8, chart.x_label))
    # Grey ones first, so that those with a colour lie on top.
    order = sorted(range(len(finite)), key=lambda i: (chart.series[i].strong, i < COLOURS, i))
    for i in order:
        points = _thinned(finite[i][1])
        style = f"s{i}" if i < COLOURS else "rest"
        smooth = _smoothed(points) if len(points) >= 40 else None
        if smooth:
            parts.append(_path(points, x, y, f"raw {style}"))
        weight = " strong" if chart.series[i].strong else ""
        parts.append(_path(smooth or points, x, y, f"line {style}{weight}", finite[i][0].label))
        if len(points) <= 16:
            parts += [
                f'<circle class="dot {style}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="3"/>'
                for a, b in points
                if b is not None
            ]
    scale = f'data-x="{left},{x_low!r},{right},{x_high!r}" data-y="{bottom},{y_marks[0]!r},{top},{y_marks[-1]!r}"'
    named = ", ".join(s.label for s in chart.series[:COLOURS])
    return drawing(parts, f"{chart.y_label} against {chart.x_label or 'position'}: {named}", f'class="curves" {scale}')


def legend(series: Sequence[Series]) -> str:
    """The key of a chart with more than one line, as HTML: it wraps where the page is narrow."""
    if len(series) < 2:
        return ""
    named = [(f"s{i}", s.label) for i, s in enumerate(series[:COLOURS])]
    if len(series) > COLOURS:
        named.append(("rest", f"{len(series) - COLOURS:,} more"))
    items = [
        f'<li><svg class="key" viewBox="0 0 24 10"><path class="line {style}" d="M1 5H23"/></svg>{_e(label)}</li>'
        for style, label in named
    ]
    return '<ul class="legend">' + "".join(items) + "</ul>"


Point = tuple[float, float | None]


def _finite_points(series: Series) -> list[Point]:
    """(x, y) in order of x; a y that is not finite becomes None: a gap in the line."""
    pairs = [(float(a), float(b)) for a, b in zip(series.x, series.y, strict=False) if math.isfinite(a)]
    return [(a, b if math.isfinite(b) else None) for a, b in sorted(pairs, key=lambda p: p[0])]


def _thinned(points: list[Point]) -> list[Point]:
    """At most `_POINTS` points: each run of neighbours keeps its lowest and highest, so spikes and gaps stay."""
    if len(points) <= _POINTS:
        return points
    size = math.ceil(len(points) / (_POINTS // 2))
    kept: list[Point] = []
    for begin in range(0, len(points), size):
        run = points[begin : begin + size]
        gap = next((p for p in run if p[1] is None), None)
        values = [(b, a) for a, b in run if b is not None]
        ends = {(a, b) for b, a in (min(values), max(values))} if values else set()
        kept += sorted(ends | ({gap} if gap else set()), key=lambda p: p[0])
    return kept


def _smoothed(points: list[Point]) -> list[Point]:
    """Local lines fitted over a tenth of the points (Cleveland's loess, uniform weights); gaps stay gaps.

    A plain moving mean would start too low and end too high on a falling loss.
    """
    half = max(3, len(points) // 20)
    smooth: list[Point] = []
    for i, (a, b) in enumerate(points):
        near = [(x, y) for x, y in points[max(0, i - half) : i + half + 1] if y is not None]
        mean_x, mean_y = sum(x for x, _ in near) / max(1, len(near)), sum(y for _, y in near) / max(1, len(near))
        spread = sum((x - mean_x) ** 2 for x, _ in near)
        slope = sum((x - mean_x) * (y - mean_y) for x, y in near) / spread if spread else 0.0
        smooth.append((a, None if b is None else mean_y + slope * (a - mean_x)))
    return smooth


def _path(points: list[Point], x, y, style: str, label: str = "") -> str:  # type: ignore[no-untyped-def]
    pieces, pen = [], "M"
    for a, b in points:
        if b is None:
            pen = "M"
        else:
            pieces.append(f"{pen}{x(a):.1f} {y(b):.1f}")
            pen = "L"
    named = f' data-label="{_e(label)}"' if label else ""
    return f'<path class="{style}"{named} d="{"".join(pieces)}"/>'


def _grid(marks: Sequence[float], y, left: float, right: float) -> str:  # type: ignore[no-untyped-def]
    lines = []
    for i, mark in enumerate(marks):
        style = "ground" if i == 0 else "grid"
        lines.append(f'<path class="{style}" d="M{left:.1f} {y(mark):.1f}H{right:.1f}"/>')
        lines.append(text_at("tick", left - 7, y(mark) + 4, tick(mark), "end"))
    return "".join(lines)


def text_at(style: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_e(text)}</text>'


def drawing(
    parts: Sequence[str], description: str, attributes: str = "", width: float = WIDTH, height: float = HEIGHT
) -> str:
    """The SVG of `parts`, which are markup; `description` is what a screen reader says."""
    head = f'role="img" aria-label="{_e(description)}" viewBox="0 0 {width:g} {height:g}" {attributes}'
    return f"<svg {head}>{''.join(parts)}</svg>"


def tick(value: float) -> str:
    if value == 0:
        return "0"
    return compact(value) if abs(value) >= 1000 else f"{value:.4g}"


def _value(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else compact(value)


def _wrapped(label: str, width: int) -> list[str]:
    """A label in at most two lines of about `width` characters."""
    width = max(5, width)
    words, lines = label.split(), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    if len(lines) > 2:
        lines = [lines[0], " ".join(lines[1:])]
    return [shortened(line, width + 1) for line in lines]
