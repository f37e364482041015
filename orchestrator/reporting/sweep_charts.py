"""Charts of a sweep as inline SVG: parallel coordinates, and bars of importance.

As in `charts.py`, the style sheet sets the colours, and coordinates are CSS pixels of the view box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from markupsafe import Markup

from ratchet.orchestrator.reporting.charts import (
    WIDTH,
    Scale,
    compute_ticks,
    draw,
    draw_chart,
    draw_text,
    format_tick,
    make_scale,
)
from ratchet.orchestrator.reporting.formatting import shorten
from ratchet.orchestrator.reporting.sweep_data import NUMBER, Line, Value

_WIDEST, _GAP, _LEFT, _RIGHT = 1072.0, 230.0, 104.0, 76.0
"""Width of the page, and of the space between and beside the axes."""
_TOP, _BOTTOM, _SLOT = 40.0, 320.0, 34.0
"""Top and bottom of the axes; the lowest `_SLOT` pixels are for trials without the setting, if any."""
_LEVELS = 5
"""Line strengths that the style sheet defines: `q0` (muted) ... `q4`."""
_BARS = 20
_CHARACTER = 7.4
"""Approximate width of a character in a wide font."""


class Axis(NamedTuple):
    """Axis of one setting: `place` maps a value to 0 (bottom) ... 1 (top); `marks` are its labels (place, text)."""

    scale: Literal["log", "linear", "even"]
    place: Callable[[Any], float]
    marks: list[tuple[float, str]]


def make_axis(written: str, values: Sequence[Value]) -> Axis:
    """Axis of a setting as its line of the space (`loguniform(1e-5, 1e-3)`) says, else by its values.

    Choices and words are evenly spaced. Ranges end at their bounds, so that one sees what the sweep did not try.
    """
    kind, _, inside = written.lower().partition("(")
    numbers = [float(v) for v in values if isinstance(v, int | float)]
    known: list[Any] = sorted(set(numbers))
    if numbers and not any(isinstance(v, str) for v in values):
        bounds = [] if "normal" in kind else [float(text) for text in NUMBER.findall(inside)[:2]]
        low, high = min(numbers + bounds), max(numbers + bounds)
        log = "log" in kind and low > 0
        if log or len(known) > 12 or any(word in kind for word in ("uniform", "int", "range", "normal")):
            scale: Literal["log", "linear"] = "log" if log else "linear"
            if not high > low:
                return Axis(scale, lambda _: 0.5, [(0.5, f"{low:.4g}")])
            linear = make_scale(math.log(low) if log else low, math.log(high) if log else high, 0, 1)
            place: Scale = (lambda value: linear(math.log(value))) if log else linear
            slack = 1e-9 * (high - low)
            marks = _list_round_numbers(low, high) if log else compute_ticks(low, high)
            return Axis(scale, place, [(place(m), format_tick(m)) for m in marks if low - slack <= m <= high + slack])
    else:  # from the top down in the order of the space
        known = list(dict.fromkeys(str(v) for v in values if v is not None))
        known.sort(key=lambda word: written.find(word) if word in written else len(written))
        known.reverse()
    places = {v: i / (len(known) - 1) if len(known) > 1 else 0.5 for i, v in enumerate(known)}
    every = max(1, math.ceil(len(known) / 14))
    texts = [(places[v], v if isinstance(v, str) else f"{v:.4g}") for v in known[::every]]
    return Axis("even", places.__getitem__, texts)


def draw_parallel(space: Mapping[str, str], lines: Sequence[Line], metric: str, maximize: bool) -> Markup:
    """Parallel coordinates: an axis per setting of `space` (name -> as written) and one for the metric, a line per
    trial. The better end of the metric is at the top. Empty if there is nothing to draw."""
    if not lines or not space:
        return Markup("")
    width = min(_WIDEST, _LEFT + _RIGHT + _GAP * max(2, len(space)))
    end, gap = width - _RIGHT, (width - _LEFT - _RIGHT) / len(space)
    most = max(4, int(min(90, gap - 20) / _CHARACTER))
    lacking = any(line.settings.get(name) is None for line in lines for name in space)
    floor = _BOTTOM - _SLOT if lacking else _BOTTOM
    values = [line.value for line in lines]
    marks = compute_ticks(min(values), max(values))
    y = make_scale(0, 1, floor, _TOP)
    y_metric = make_scale(marks[0], marks[-1], *((_BOTTOM, _TOP) if maximize else (_TOP, _BOTTOM)))
    poles = [draw('<path class="pole" d="M{:.1f} {:.1f}V{:.1f}"/>', end, _TOP, _BOTTOM)]
    texts = [draw_text("tick", end + 8, y_metric(mark) + 4, format_tick(mark), "start") for mark in marks]
    heading = shorten(metric, int(2 * _RIGHT / (_CHARACTER + 0.5)) - 2)
    texts.append(draw_text("name", end, _TOP - 20, f"{heading} {'↑' if maximize else '↓'}"))
    points: list[list[tuple[float, float]]] = [[] for _ in lines]
    for i, (name, written) in enumerate(space.items()):
        x, given = _LEFT + gap * i, [_unify_number(line.settings.get(name)) for line in lines]
        axis = make_axis(written, given)
        poles.append(draw('<path class="pole" d="M{:.1f} {:.1f}V{:.1f}"/>', x, _TOP, floor))
        for place, label in axis.marks:
            texts.append(draw_text("tick", x - 8, y(place) + 4, shorten(label, most), "end"))
        if None in given:
            texts.append(draw_text("tick", x - 8, _BOTTOM + 4, "default"[:most], "end"))
        heading = shorten(name, max(6, int(min(gap - 12, 2 * _LEFT) / (_CHARACTER + 0.5))))
        texts.append(draw_text("name", x, _TOP - 20, heading))
        for line, value in zip(points, given, strict=True):
            line.append((x, _BOTTOM if value is None else y(min(1.0, max(0.0, axis.place(value))))))
    levels = _rank_levels([value if maximize else -value for value in values])
    drawn = []
    # The better, the later: on top. The winner lies on top of all, above the defaults.
    for i in sorted(range(len(lines)), key=lambda i: (lines[i].winner, lines[i].defaults, levels[i], i)):
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in [*points[i], (end, y_metric(values[i]))])
        roles = "".join(f" {role}" for role in ("winner", "defaults", "stopped") if getattr(lines[i], role))
        group = '<g class="trial q{}{}"><title>{}</title><path class="hit" d="{}"/><path class="run" d="{}"/></g>'
        drawn.append(draw(group, levels[i], roles, lines[i].tip, path, path))
    described = f"{metric} of {len(lines)} trials by {', '.join(space)}"
    attributes = draw('class="parallel" style="max-width:{:g}px;min-width:{:g}px"', width, 0.7 * width)
    return draw_chart([*poles, *drawn, *texts], described, attributes, (width, _BOTTOM + 16))


def list_parallel_keys(lines: Sequence[Line]) -> list[tuple[str, str, str]]:
    """Key of parallel coordinates: (label, class of the group, class of the line)."""
    kinds = [
        ("winner", "winner", any(line.winner for line in lines)),
        ("the recipe's defaults", "defaults", any(line.defaults and not line.winner for line in lines)),
        ("better", "q4", len(lines) > 2),
        ("worse", "q0", len(lines) > 2),
        ("stopped early", "q3 stopped", any(line.stopped for line in lines)),
    ]
    return [(label, f"trial {style}", "run") for label, style, there in kinds if there]


def draw_importance(shares: Mapping[str, float]) -> Markup:
    """Bar per setting, the largest share first, at most `_BARS`; empty if there is none."""
    known = [(share, name) for name, share in shares.items() if math.isfinite(share) and share >= 0]
    known = sorted(known, key=lambda pair: -pair[0])[:_BARS]
    if not known or known[0][0] <= 0:
        return Markup("")
    left, row = 168.0, 28.0
    bar = '<rect class="bar" x="{}" y="{:.1f}" width="{:.1f}" height="18" rx="2"><title>{}: {:.1f} %</title></rect>'
    parts = []
    for i, (share, name) in enumerate(known):
        y, long = 6 + row * i, max(1.0, (WIDTH - left - 52) * share / known[0][0])
        parts.append(draw_text("label", left - 10, y + 14, shorten(name, int((left - 14) / _CHARACTER)), "end"))
        parts.append(draw(bar, left, y, long, name, 100 * share))
        parts.append(draw_text("value", left + long + 8, y + 14, f"{100 * share:.0f} %", "start"))
    listing = ", ".join(f"{name} {100 * share:.0f} %" for share, name in known)
    return draw_chart(parts, f"share of the variance per setting: {listing}", size=(WIDTH, 12 + row * len(known)))


def _unify_number(value: Value) -> Value:
    """Convert numbers to floats, so that 3 and 3.0 are one place of an axis."""
    return float(value) if isinstance(value, int) else value


def _rank_levels(goodness: Sequence[float]) -> list[int]:
    """Level of each line by rank, 0 (muted) to `_LEVELS` - 1: one bad trial does not make all others look alike."""
    distinct = sorted(set(goodness), reverse=True)
    rank = {value: 1 - i / max(1, len(distinct) - 1) for i, value in enumerate(distinct)}
    return [round(rank[value] * (_LEVELS - 1)) for value in goodness]


def _list_round_numbers(low: float, high: float) -> list[float]:
    """Powers of ten between two positive numbers, with 2 and 5 times these if there are few; else the ends."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = math.ceil((last - first) / 8)
    tens = [float(f"1e{e}") for e in range(first, last + 1, every)]
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    inside = [m * ten for ten in tens for m in steps if low * (1 - 1e-9) <= m * ten <= high * (1 + 1e-9)]
    return inside if len(inside) > 1 else [low, high]
