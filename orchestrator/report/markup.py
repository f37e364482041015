"""What the pages are put together from: the document with its style and policy, sections, figures, tables.

Texts are escaped here, except titles of sections, which the pages write themselves.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from orchestrator.report.parts import best, direction
from orchestrator.show import NOTHING, cells, clean, is_number, is_time, plural


def document(title: str, sections: Iterable[str]) -> str:
    """The whole page; empty sections are left out. Its policy forbids loads and any script but page.js."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    mark = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{mark}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escaped(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + f"\n</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def figure(title: str, note: str, body: str, style: str = "") -> str:
    caption = f"<figcaption><b>{escaped(title)}</b> <span>{escaped(note)}</span></figcaption>"
    return f'<figure class="{style}">{caption}{body}</figure>'


def folded(parts: Sequence[str], noun: str) -> str:
    return (
        f"<details><summary>{plural(len(parts), f'more {noun}')}</summary>{''.join(parts)}</details>" if parts else ""
    )


def pairs(heading: str, values: Mapping[str, str]) -> str:
    rows = "".join(f"<tr><th>{escaped(name)}</th><td>{escaped(value)}</td></tr>" for name, value in values.items())
    return f'<h4>{escaped(heading)}</h4><table class="pairs">{rows}</table>' if values else ""


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    chosen: Collection[int] = (),
    quiet: Collection[int] = (),
    texts: Mapping[str, Sequence[str]] | None = None,
    directions: Mapping[str, int] | None = None,
    contenders: Collection[int] | None = None,
) -> str:
    """A sortable table; the best value of a column is bold, `chosen` rows are marked, `quiet` rows are grey.

    `texts` has the cells of columns that are not shown as `cells` would; `directions`, where given, says of which
    columns a value is better (see `direction`), whatever the others are called; `contenders`: see `best`.
    """
    head, shown = [], []
    for column in columns:
        values = [row.get(column) for row in rows]
        numeric = all(v is None or is_number(v) for v in values)
        sign = direction(column) if directions is None else directions.get(column, 0)
        winners = best(values, column, sign, contenders)
        hint = {1: ' title="higher is better"', -1: ' title="lower is better"'}.get(sign, "")
        arrow = {1: "<small> ↑</small>", -1: "<small> ↓</small>"}.get(sign, "")
        head.append(f"<th{' class=n' if numeric else ''}{hint}>{escaped(column)}{arrow}</th>")
        side = ' class="n"' if numeric else ""
        column_cells = []
        for i, (value, text) in enumerate(zip(values, (texts or {}).get(column) or cells(values, column), strict=True)):
            exact = f' title="{escaped(str(value))}"' if isinstance(value, float) and not is_time(column) else ""
            body = f"<b>{escaped(text)}</b>" if i in winners and text != NOTHING else escaped(text)
            column_cells.append(f'<td{side}{exact} data-v="{escaped("" if value is None else str(value))}">{body}</td>')
        shown.append(column_cells)
    lines = []
    for i, line in enumerate(zip(*shown, strict=True)):
        style = " ".join(name for name, these in (("chosen", chosen), ("quiet", quiet)) if i in these)
        lines.append(f'<tr class="{style}">{"".join(line)}</tr>' if style else f"<tr>{''.join(line)}</tr>")
    return sortable("".join(head), "".join(lines), "sortable")


def sortable(head: str, body: str, style: str) -> str:
    table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="{style}">{table}</table></div>'


def escaped(text: str) -> str:
    return escape(clean(text), quote=True)
