"""Formatting of numbers, times and texts for the terminal, report.html and report.md."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from ratchet.orchestrator.job_interface.job import is_time
from ratchet.orchestrator.job_interface.terminal import clean

NOTHING = "–"
"""Text for a missing value."""


class Estimate(float):
    """A number with its deviation: the standard deviation over repetitions, or the half width of a confidence interval.
    None: not known."""

    deviation: float | None

    def __new__(cls, value: float, deviation: float | None) -> Estimate:
        estimate = super().__new__(cls, value)
        estimate.deviation = deviation
        return estimate

    @classmethod
    def of_mean(cls, values: Sequence[float]) -> Estimate:
        """Return the mean of repetitions, such as seeds or folds, with the standard deviation (None for one value)."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)


def judge_difference(before: float, after: float) -> str:
    """Return `more than noise` if two estimates with deviations s and t differ by more than sqrt(s^2 + t^2), which is
    the deviation of the difference of independent estimates; else `within noise`. Empty if a deviation is not known."""
    widths = []
    for one in (before, after):
        if isinstance(one, Estimate) and one.deviation is not None:
            widths.append(one.deviation)
    if len(widths) < 2:
        return ""
    if abs(after - before) > math.hypot(*widths):
        return "more than noise"
    return "within noise"


def format_with_deviation(value: Any, format_one: Callable[[Any], str]) -> str:
    """Format a value, and an `Estimate` as `0.412 ± 0.003`."""
    if isinstance(value, Estimate):
        deviation = value.deviation
    else:
        deviation = None
    return format_one(value) + ("" if deviation is None else f" ± {format_one(deviation)}")


def shorten(text: str, width: int) -> str:
    """Shorten a text to `width` characters by replacing its middle with an ellipsis."""
    if len(text) <= width:
        return text
    if width <= 1:
        return text[:width]
    tail = (width - 1) * 3 // 5
    return text[: width - 1 - tail] + "…" + text[len(text) - tail :]


def format_duration(seconds: float | None) -> str:
    """Format a duration: `0.42 s`, `12 s`, `2 m 05 s`, `3 h 04 m`, `2 d 03 h`; a dash for None."""
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        if seconds < 0.995:
            return f"{seconds:.2f} s"
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} m"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def format_timestamp(timestamp: float | None) -> str:
    """Format seconds since 1970: `2025-03-01 14:02 UTC`; a dash for None."""
    if timestamp is None:
        return NOTHING
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d %H:%M UTC")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_compact(value: float) -> str:
    """Format a number in few characters: `4.6k`, `0.412`, `12`, `2e-05`."""
    if not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        if value > 0:
            return "inf"
        return "-inf"
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit * 0.9995:
            scaled = value / limit
            if abs(scaled) < 99.95:
                return f"{scaled:.1f}{suffix}"
            return f"{scaled:.0f}{suffix}"
    if value == int(value):
        return str(int(value))
    if size < 1e-3:
        return f"{value:.0e}"
    if size < 10:
        return f"{value:.3f}"
    return f"{value:.1f}"


def format_cells(values: Sequence[Any], column: str) -> list[str]:
    """Format the cells of a column: seconds as durations, floats with the same number of decimals."""
    floats = []
    for v in values:
        if isinstance(v, float) and math.isfinite(v):
            floats.append(abs(v))
    largest = max(floats, default=0.0)
    if largest < 10:
        decimals = 3
    else:
        if largest < 100:
            decimals = 2
        else:
            if largest < 1000:
                decimals = 1
            else:
                decimals = 0
    found: list[str] = []
    for v in values:
        found.append(format_with_deviation(v, lambda one: _cell(one, column, decimals)))
    return found


def _cell(value: Any, column: str, decimals: int) -> str:
    if value is None:
        return NOTHING
    if not is_number(value):
        return format_setting(value)
    if is_time(column):
        return format_duration(float(value))
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return format_compact(value)
    if value and (abs(value) < 5e-4 or abs(value) >= 1e9):
        return f"{value:.3g}"
    return f"{value:,.{decimals}f}"


def format_number(value: float | int | str, name: str = "") -> str:
    """Format a single metric; see `format_cells`."""
    return format_cells([value], name)[0]


def format_setting(value: Any) -> str:
    """Format the value of a setting: `0.0002`, `2, 200`, `yes`, `none`; no thousands separators."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        if value:
            return "yes"
        return "no"
    if isinstance(value, list | tuple):
        return ", ".join(format_setting(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, default=str, sort_keys=True)
    return clean(str(value))


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun: `1 step`, `2,000 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
