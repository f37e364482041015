"""Tables in the terminal, and the numbers in them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ratchet.orchestrator.job_interface.terminal import CleanConsole
from ratchet.orchestrator.reporting.formatting import NOTHING, format_with_deviation


def print_table(rows: Mapping[str, Mapping[str, str]]) -> None:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    grid = Table("", *columns, box=None, pad_edge=False)
    for column in grid.columns[1:]:
        column.justify = "right"
    for label, row in rows.items():
        grid.add_row(Text(label), *(Text(row.get(c, NOTHING)) for c in columns))
    print_grid(grid)


def print_grid(grid: Table) -> None:
    """Print a table. Words are never cut: a terminal that is too narrow for the longest ones wraps the lines."""
    for column in grid.columns:
        cells = (str(cell) for cell in (column.header, *column.cells))
        column.min_width = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
    console, needed = CleanConsole(), CleanConsole(width=10_000).measure(grid)
    width = max(console.width, needed.minimum) if console.is_terminal else needed.maximum
    CleanConsole(width=width).print(grid)


def format_time(seconds: float | None) -> str:
    return NOTHING if seconds is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def format_value(value: float | None) -> str:
    if value is None:
        return NOTHING
    return format_with_deviation(value, format_number)


def format_number(value: float) -> str:
    return f"{value:z.4f}" if abs(value) < 10 else f"{value:,.1f}".removesuffix(".0")
