"""Two kinds of picture of a sweep as inline SVG: parallel coordinates, and bars of importance.

Like `orchestrator.report.charts`: the style sheet colours them, all texts are escaped here, and coordinates are CSS
pixels of the drawing's own view box.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.report.charts import WIDTH, drawing, text_at, tick, ticks
from orchestrator.report.markup import escaped as _e
from orchestrator.report.sweep_parts import NUMBER
from orchestrator.show import shortened

Value = float | str | None
"""Of one setting in one trial; None: the recipe's default, whatever that is."""

_WIDEST, _GAP, _LEFT, _RIGHT = 1072.0, 230.0, 104.0, 76.0
"""The page's width, and what is left between and beside the axes."""
_TOP, _BOTTOM, _SLOT = 40.0, 320.0, 34.0
"""The axes from top to bottom; of it `_SLOT` is for trials without the setting, where there are any."""
_LEVELS = 5
"""Strengths of a line that the style sheet has: `q0` (muted) ... `q4`."""
_BARS = 20
_CHARACTER = 7.4
"""Width of one, about, in a wide font."""


@dataclass(frozen=True)
class Line:
    """One trial."""

    tip: str
    """What is shown under the pointer."""
    settings: Mapping[str, Value]
    value: float
    """Of the metric; finite."""
    winner: bool = False
    defaults: bool = False
    stopped: bool = False


@dataclass(frozen=True)
class Axis:
    """Where the values of one setting lie: at `place(value)`, from 0 at the bottom to 1 at the top."""

    scale: Literal["log", "linear", "even"]
    low: float = 0.0
    high: float = 0.0
    known: tuple[float | str, ...] = ()
    """All values from bottom to top, of an even axis."""

    def place(self, value: float | str) -> float:
        if self.scale == "even":
            return self.known.index(value) / (len(self.known) - 1) if len(self.known) > 1 else 0.5
        number = float(value)
        if not self.high > self.low:
            return 0.5
        if self.scale == "log":
            return (math.log(number) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (number - self.low) / (self.high - self.low)

    @property
    def marks(self) -> list[tuple[float, str]]:
        """(place, text) of what is written at the axis."""
        if self.scale == "even":
            every = max(1, math.ceil(len(self.known) / 14))
            return [(self.place(v), v if isinstance(v, str) else f"{v:.4g}") for v in self.known[::every]]
        if not self.high > self.low:
            return [(0.5, f"{self.low:.4g}")]
        inside = _round_numbers(self.low, self.high) if self.scale == "log" else ticks(self.low, self.high)
        slack = 1e-9 * (self.high - self.low)
        return [(self.place(m), tick(m)) for m in inside if self.low - slack <= m <= self.high + slack]


def axis(written: str, values: Sequence[Value]) -> Axis:
    """The axis of a setting: as its line of the space (`loguniform(1e-5, 1e-3)`) says, else by its values.

    Choices and words are evenly spaced; numbers from a range have its bounds as ends, so that one sees what the sweep
    did not try.
    """
    kind, _, inside = written.partition("(")
    kind = kind.lower()
    numbers = [float(v) for v in values if isinstance(v, int | float)]
    if numbers and not any(isinstance(v, str) for v in values):
        bounds = [] if "normal" in kind else [float(text) for text in NUMBER.findall(inside)[:2]]
        low, high = min(numbers + bounds), max(numbers + bounds)
        if "log" in kind and low > 0:
            return Axis("log", low, high)
        if any(word in kind for word in ("uniform", "int", "range", "normal")) or len(set(numbers)) > 12:
            return Axis("linear", low, high)
        return Axis("even", known=tuple(sorted(set(numbers))))
    words = list(dict.fromkeys(str(v) for v in values if v is not None))
    # From the top down in the order of the space.
    found = {word: written.find(word) for word in words}
    words.sort(key=lambda word: found[word] if found[word] >= 0 else len(written))
    return Axis("even", known=tuple(reversed(words)))


def parallel_chart(space: Mapping[str, str], lines: Sequence[Line], metric: str, maximize: bool) -> str:
    """Parallel coordinates: an axis per setting of `space` (name -> as written) and one for the metric, a line per
    trial. The better end of the metric is at the top. '' if there is nothing to draw."""
    if not lines or not space:
        return ""
    width = min(_WIDEST, _LEFT + _RIGHT + _GAP * max(2, len(space)))
    gap = (width - _LEFT - _RIGHT) / len(space)
    at = {name: _LEFT + gap * i for i, name in enumerate(space)}
    axes = {name: axis(written, [_comparable(line, name) for line in lines]) for name, written in space.items()}
    lacking = any(line.settings.get(name) is None for line in lines for name in space)
    floor = _BOTTOM - _SLOT if lacking else _BOTTOM
    values = [line.value for line in lines]
    scale = ticks(min(values), max(values))

    def y(place: float) -> float:
        return floor - min(1.0, max(0.0, place)) * (floor - _TOP)

    def y_metric(value: float) -> float:
        place = (value - scale[0]) / (scale[-1] - scale[0])
        return _BOTTOM - (place if maximize else 1 - place) * (_BOTTOM - _TOP)

    drawn, written = [], []
    for name in space:
        x, most = at[name], max(4, int(min(90, gap - 20) / _CHARACTER))
        drawn.append(f'<path class="pole" d="M{x:.1f} {_TOP:.1f}V{floor:.1f}"/>')
        for place, label in axes[name].marks:
            written.append(text_at("tick", x - 8, y(place) + 4, shortened(label, most), "end"))
        if any(line.settings.get(name) is None for line in lines):
            written.append(text_at("tick", x - 8, _BOTTOM + 4, "default"[:most], "end"))
        heading = shortened(name, max(6, int(min(gap - 12, 2 * _LEFT) / (_CHARACTER + 0.5))))
        written.append(text_at("name", x, _TOP - 20, heading))
    end = width - _RIGHT
    drawn.append(f'<path class="pole" d="M{end:.1f} {_TOP:.1f}V{_BOTTOM:.1f}"/>')
    written += [text_at("tick", end + 8, y_metric(mark) + 4, tick(mark), "start") for mark in scale]
    heading = shortened(metric, int(2 * _RIGHT / (_CHARACTER + 0.5)) - 2)
    written.append(text_at("name", end, _TOP - 20, f"{heading} {'↑' if maximize else '↓'}"))
    levels = _levels([value if maximize else -value for value in values])
    # The better, the later: on top. The winner lies on top of all, above the defaults.
    order = sorted(range(len(lines)), key=lambda i: (lines[i].winner, lines[i].defaults, levels[i], i))
    for i in order:
        line = lines[i]
        points = []
        for name in space:
            value = _comparable(line, name)
            points.append((at[name], _BOTTOM if value is None else y(axes[name].place(value))))
        points.append((end, y_metric(line.value)))
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        roles = "".join(f" {role}" for role in ("winner", "defaults", "stopped") if getattr(line, role))
        drawn.append(
            f'<g class="trial q{levels[i]}{roles}"><title>{_e(line.tip)}</title>'
            f'<path class="hit" d="{path}"/><path class="run" d="{path}"/></g>'
        )
    described = f"{metric} of {len(lines)} trials by {', '.join(space)}"
    attributes = f'class="parallel" style="max-width:{width:g}px;min-width:{0.7 * width:g}px"'
    return drawing([*drawn, *written], described, attributes, width, _BOTTOM + 16)


def parallel_key(lines: Sequence[Line]) -> str:
    """What the lines of a `parallel_chart` mean, as HTML."""
    kinds = [
        ("winner", "winner", any(line.winner for line in lines)),
        ("defaults", "the recipe's defaults", any(line.defaults and not line.winner for line in lines)),
        ("q4", "better", len(lines) > 2),
        ("q0", "worse", len(lines) > 2),
        ("q3 stopped", "stopped early", any(line.stopped for line in lines)),
    ]
    items = [
        f'<li><svg class="key" viewBox="0 0 24 10"><g class="trial {style}"><path class="run" d="M1 5H23"/></g></svg>'
        f"{meaning}</li>"
        for style, meaning, there in kinds
        if there
    ]
    return '<ul class="legend">' + "".join(items) + "</ul>" if items else ""


def importance_chart(shares: Mapping[str, float]) -> str:
    """A bar per setting, the largest share first; '' if there is none. Of many, the largest `_BARS`."""
    known = [(share, name) for name, share in shares.items() if math.isfinite(share) and share >= 0]
    known = sorted(known, key=lambda pair: -pair[0])[:_BARS]
    if not known or known[0][0] <= 0:
        return ""
    left, row = 168.0, 28.0
    longest = WIDTH - left - 52
    parts = []
    for i, (share, name) in enumerate(known):
        y, long = 6 + row * i, max(1.0, longest * share / known[0][0])
        tip = f"<title>{_e(name)}: {100 * share:.1f} %</title>"
        parts.append(text_at("label", left - 10, y + 14, shortened(name, int((left - 14) / _CHARACTER)), "end"))
        parts.append(f'<rect class="bar" x="{left:.1f}" y="{y:.1f}" width="{long:.1f}" height="18" rx="2">{tip}</rect>')
        parts.append(text_at("value", left + long + 8, y + 14, f"{100 * share:.0f} %", "start"))
    listing = ", ".join(f"{name} {100 * share:.0f} %" for share, name in known)
    return drawing(parts, f"share of the variance per setting: {listing}", "", WIDTH, 12 + row * len(known))


def _comparable(line: Line, name: str) -> Value:
    """Numbers as floats, so that 3 and 3.0 are one place of an axis."""
    value = line.settings.get(name)
    return float(value) if isinstance(value, int) else value


def _levels(goodness: Sequence[float]) -> list[int]:
    """0 (muted) to `_LEVELS` - 1 per line by rank, so that a single bad trial does not make all others look alike."""
    distinct = sorted(set(goodness))
    if len(distinct) == 1:
        return [_LEVELS - 1] * len(goodness)
    rank = {value: i / (len(distinct) - 1) for i, value in enumerate(distinct)}
    return [round(rank[value] * (_LEVELS - 1)) for value in goodness]


def _round_numbers(low: float, high: float) -> list[float]:
    """Powers of ten between two positive numbers; with 2 and 5 times these where there are few; else the ends."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = math.ceil((last - first) / 8)
    tens = [float(f"1e{e}") for e in range(first, last + 1, every)]
    steps = (1, 2, 5) if last - first <= 3 else (1,)
    inside = [m * ten for ten in tens for m in steps if low * (1 - 1e-9) <= m * ten <= high * (1 + 1e-9)]
    return inside if len(inside) > 1 else [low, high]
