"""Formatting of numbers, times and texts for the terminal, report.html and report.md."""

import json
import math
import re
import statistics
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text

from ratchet.orchestrator.job_interface.clean_output import CleanConsole, clean

_TIMES = re.compile(r"(^|[_ ])(time|duration|seconds|secs?)$|(?<!per)[_ ]s$", re.IGNORECASE)
"""Title of a column that holds seconds (`time`, `seconds`, `train_s`; not `tokens_per_s`)."""
NOTHING = "–"
"""Text for a missing value."""


class Estimate(float):
    """A number with its deviation: the standard deviation over repetitions, or the half width of a confidence interval.
    None: not known."""

    deviation: float | None

    def __new__(cls, value: float, deviation: float | None) -> "Estimate":
        estimate = super().__new__(cls, value)
        estimate.deviation = deviation
        return estimate

    @classmethod
    def of_mean(cls, values: Sequence[float]) -> "Estimate":
        """Return the mean of repetitions, such as seeds or folds, with the standard deviation (None for one value)."""
        if len(values) < 2:
            return cls(values[0], None)
        return cls(statistics.fmean(values), statistics.stdev(values))


def judge_difference(before: float, after: float) -> str:
    """Say whether a difference of two estimates is larger than their deviations together: `more than noise` or `within
    noise`. Empty if a deviation is not known."""
    one = getattr(before, "deviation", None)
    other = getattr(after, "deviation", None)
    if one is None or other is None:
        return ""
    if abs(after - before) > math.hypot(one, other):
        return "more than noise"
    return "within noise"


def shorten(text: str, width: int) -> str:
    """Shorten a text to `width` characters by replacing its middle with an ellipsis."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 3 // 5
    return text[: width - 1 - tail] + "…" + text[len(text) - tail :]


def format_duration(seconds: float | None) -> str:
    """Format a duration: `0.42 s`, `12 s`, `2 m 05 s`, `3 h 04 m`, `2 d 03 h`; a dash for None."""
    if seconds is None:
        return NOTHING
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    hours, rest = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {rest:02d} m"
    days, rest = divmod(round(seconds / 3600), 24)
    return f"{days} d {rest:02d} h"


def format_timestamp(timestamp: float | None) -> str:
    """Format seconds since 1970 for a report: `2025-03-01 14:02 UTC`."""
    return datetime.fromtimestamp(timestamp or 0.0, UTC).strftime("%Y-%m-%d %H:%M UTC")


def format_local_time(timestamp: float | None) -> str:
    """Format seconds since 1970 for the terminal, in the local time zone; a dash for None."""
    if timestamp is None:
        return NOTHING
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(timestamp))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def format_value(value: Any, column: str = "") -> str:
    """Format a cell of a table. column: its title; numbers of a column such as `time` are seconds."""
    if value is None:
        return NOTHING
    if not is_number(value):
        return format_setting(value)
    if _TIMES.search(column):
        return format_duration(float(value))
    if isinstance(value, int):
        return f"{value:,}"
    deviation = getattr(value, "deviation", None)
    if deviation is None:
        return _format_float(value)
    return f"{_format_float(value)} ± {_format_float(deviation)}"


def _format_float(value: float) -> str:
    size = abs(value)
    if not math.isfinite(value):
        return NOTHING
    if size >= 1e9 or 0 < size < 5e-5:
        return f"{value:.3g}"
    if size < 10:
        return f"{value:z.4f}"
    return f"{value:,.1f}".removesuffix(".0")


def format_change(before: float, after: float) -> str:
    """Format two numbers and their difference: `92.9 → 84.4 (-8.5)`."""
    size = max(abs(before), abs(after))
    digits = 4 if size < 10 else 1
    return f"{_format_float(before)} → {_format_float(after)} ({after - before:+z.{digits}f})"


def format_setting(value: Any) -> str:
    """Format the value of a setting: `0.0002`, `2, 200`, `yes`, `none`; no thousands separators."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(format_setting(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, default=str, sort_keys=True)
    return clean(str(value))


def pluralize(count: int, noun: str) -> str:
    """Format a count with its noun: `1 step`, `2,000 steps`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class Column(NamedTuple):
    """A column: cells as texts, direction (see `Job.direction`), and positions of the best values."""

    name: str
    texts: Sequence[str]
    numeric: bool
    direction: int
    best: Collection[int]


class Table(NamedTuple):
    """A table. styles: position of a row -> `chosen` or `quiet` (grey)."""

    columns: Sequence[Column]
    styles: Mapping[int, str]


def build_table(
    rows: Sequence[Mapping[str, Any]],
    styles: Mapping[int, str] | None = None,
    directions: Mapping[str, int] | None = None,
) -> Table:
    """Build a table of rows (column -> value); without rows, it has no columns. directions: column -> direction, for
    the columns whose best values are marked."""
    columns = []
    names = collect_columns(rows)
    if names[:1] == ["k"]:
        directions = {}  # more documents find more
    for name in names:
        values = [row.get(name) for row in rows]
        texts = [format_value(value, name) for value in values]
        numeric = all(value is None or is_number(value) for value in values)
        direction = (directions or {}).get(name, 0)
        columns.append(Column(name, texts, numeric, direction, find_best(values, direction)))
    return Table(columns, styles or {})


def find_best(values: Sequence[Any], direction: int) -> set[int]:
    """Return the positions of the best value; empty if there is no direction or most values are equal to it."""
    known = {i: direction * value for i, value in enumerate(values) if is_finite(value)}
    best = {i for i, value in known.items() if value == max(known.values())}
    if not direction or 3 * len(best) > 2 * len(known):
        return set()
    return best


def is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def collect_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return all column names, in the order of their first appearance."""
    names = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return list(names)


def print_table(table: Table) -> None:
    """Print a table. Words are never cut: if the terminal is too narrow for the longest words, it wraps the lines."""
    grid = Grid(box=None, pad_edge=False)
    for column in table.columns:
        words = " ".join([column.name, *column.texts]).split()
        longest = max(map(cell_len, words), default=0)
        grid.add_column(
            Text(column.name), justify="right" if column.numeric else "left", min_width=longest
        )
    for row in zip(*(column.texts for column in table.columns), strict=True):
        grid.add_row(*map(Text, row))
    console = CleanConsole()
    needed = CleanConsole(width=10_000).measure(grid)
    width = needed.maximum
    if console.is_terminal:
        width = max(console.width, needed.minimum)
    CleanConsole(width=width).print(grid)
