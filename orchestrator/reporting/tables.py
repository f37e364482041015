"""Tables of a report, without markup: columns, the texts of their cells, and the best number of each column."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ratchet.orchestrator.job_interface.job import infer_direction
from ratchet.orchestrator.reporting.formatting import NOTHING, format_cells, is_number


def find_best(
    values: Sequence[Any], column: str, sign: int | None = None, contenders: Collection[int] | None = None
) -> set[int]:
    """Return the positions of the best value of a column; empty if no direction is known or all values are equal.

    sign: overrides `infer_direction`. contenders: the positions to compare (default: all).
    """
    if sign is None:
        sign = infer_direction(column)
    signed = {}
    for i, v in enumerate(values):
        if is_finite(v) and (contenders is None or i in contenders):
            signed[i] = sign * v
    best = max(signed.values(), default=0)
    if sign and best > min(signed.values(), default=0):
        found: set[int] = set()
        for i, v in signed.items():
            if v == best:
                found.add(i)
        return found
    return set()


def is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def collect_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return all column names, in the order of their first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))


class Column(NamedTuple):
    """A column: values, cells as texts, direction (see `infer_direction`), and positions of the best values."""

    name: str
    values: Sequence[Any]
    texts: Sequence[str]
    numeric: bool
    direction: int
    best: Collection[int]


class Table(NamedTuple):
    """A table of a report. styles: position of a row -> `chosen` or `quiet` (grey)."""

    columns: Sequence[Column]
    styles: Mapping[int, str]


def build_table(
    rows: Sequence[Mapping[str, Any]],
    styles: Mapping[int, str],
    texts: Mapping[str, Sequence[str]] | None = None,
    directions: Mapping[str, int] | None = None,
    contenders: Collection[int] | None = None,
) -> Table:
    """Build a table of `rows`; without rows, it has no columns.

    texts: column -> its cells. directions: column -> its direction (0 if absent). contenders: see `find_best`.
    """
    columns = []
    for name in collect_columns(rows):
        values = [row.get(name) for row in rows]
        shown = (texts or {}).get(name) or format_cells(values, name)
        if directions is None:
            sign = infer_direction(name)
        else:
            sign = directions.get(name, 0)
        winners = set()
        for i in find_best(values, name, sign, contenders):
            if shown[i] != NOTHING:
                winners.add(i)
        numeric = all(v is None or is_number(v) for v in values)
        columns.append(Column(name, values, shown, numeric, sign, winners))
    return Table(columns, styles)
