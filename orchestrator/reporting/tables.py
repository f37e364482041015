"""Tables of a report, without markup: columns, the texts of their cells, and which number of a column is best."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ratchet.orchestrator.reporting.formatting import NOTHING, format_cells, is_number, is_time

_LOWER = re.compile(r"loss|error|perplexity|\bppl\b|latency|\brank\b|missing|\bm[as]e\b|\brmse\b|difference")
_HIGHER = re.compile(
    r"^[rp]@\d|\bm?ap\b|\bmap@|\bmrr|\bndcg|recall|precision|accuracy|\bacc\b|\bem\b|\bf1\b|exact|\bhits?\b|pass@|\bauc\b"
    r"|bleu|rouge|lenient|success|solved|correct|per_s\b|/s\b"
)


def infer_direction(column: str) -> int:
    """Return 1 if higher is better, -1 if lower is better, 0 if the name does not tell or the column is a time."""
    name = column.lower().replace("_", " ").replace(" per s", " per_s")
    if is_time(column):
        return 0
    return -1 if _LOWER.search(name) else int(bool(_HIGHER.search(name)))


def find_best(
    values: Sequence[Any], column: str, sign: int | None = None, contenders: Collection[int] | None = None
) -> set[int]:
    """Positions of the best value of a column; empty if no direction is known or no value stands out.

    `sign` overrides `infer_direction`; only the positions in `contenders`, if given, are compared.
    """
    sign = infer_direction(column) if sign is None else sign
    signed = {i: sign * v for i, v in enumerate(values) if is_finite(v) and (contenders is None or i in contenders)}
    best = max(signed.values(), default=0)
    return {i for i, v in signed.items() if v == best} if sign and best > min(signed.values(), default=0) else set()


def is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)


def collect_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """All columns in the order of their first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))


class Column(NamedTuple):
    """Column of a table: its values, its cells as texts, its direction (see `infer_direction`) and its best rows."""

    name: str
    values: Sequence[Any]
    texts: Sequence[str]
    numeric: bool
    direction: int
    best: Collection[int]


class Table(NamedTuple):
    """Table of both files; `styles` marks rows as `chosen` or `quiet` (grey)."""

    columns: Sequence[Column]
    styles: Mapping[int, str]


def build_table(
    rows: Sequence[Mapping[str, Any]],
    styles: Mapping[int, str],
    texts: Mapping[str, Sequence[str]] | None = None,
    directions: Mapping[str, int] | None = None,
    contenders: Collection[int] | None = None,
) -> Table:
    """Table of `rows`; without columns if there are none.

    `texts` overrides the cells of a column, `directions` its direction (0 if absent); `contenders`: see `find_best`.
    """
    columns = []
    for name in collect_columns(rows):
        values = [row.get(name) for row in rows]
        shown = (texts or {}).get(name) or format_cells(values, name)
        sign = infer_direction(name) if directions is None else directions.get(name, 0)
        winners = {i for i in find_best(values, name, sign, contenders) if shown[i] != NOTHING}
        numeric = all(v is None or is_number(v) for v in values)
        columns.append(Column(name, values, shown, numeric, sign, winners))
    return Table(columns, styles)
