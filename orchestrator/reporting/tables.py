"""Tables of reports and of the terminal, without markup: columns, their cells as text, and the best of each column."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text

from ratchet.orchestrator.job_interface.clean_output import CleanConsole
from ratchet.orchestrator.reporting.formatting import format_value, is_number


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
    for name in collect_columns(rows):
        values = [row.get(name) for row in rows]
        texts = []
        for value in values:
            texts.append(format_value(value, name))
        numeric = all(value is None or is_number(value) for value in values)
        direction = (directions or {}).get(name, 0)
        columns.append(Column(name, texts, numeric, direction, find_best(values, direction)))
    return Table(columns, styles or {})


def find_best(values: Sequence[Any], direction: int) -> set[int]:
    """Return the positions of the best value; empty if there is no direction or all values are equal."""
    known = {}
    for i, value in enumerate(values):
        if is_finite(value):
            known[i] = direction * value
    best = max(known.values(), default=0)
    if not direction or best == min(known.values(), default=0):
        return set()
    found: set[int] = set()
    for i, value in known.items():
        if value == best:
            found.add(i)
    return found


def is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def collect_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return all column names, in the order of their first appearance."""
    names: dict[str, None] = {}
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
