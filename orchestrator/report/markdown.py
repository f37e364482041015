"""`report.md`: the report for a terminal, a pull request or a mail."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator.report import ReportData, StepReport
from orchestrator.report.parts import best, cards, columns_of, headline, headline_columns, kept_rows, losses
from orchestrator.show import NOTHING, cells, clean, duration, is_number, literal, moment, plural

_SPECIAL = re.compile(r"([\\`*{}\[\]<>|~$#]|(?<!\w)_|_(?!\w))")  # `a_b` needs no escape
_EXAMPLES = 5
_STEPS = 200


def markdown(data: ReportData) -> str:
    """GitHub's Markdown; data is escaped so that a query with `$x_1 < y$` or a pipe reads as it is."""
    numbers = [(sum(s.status == status for s in data.steps), word) for status, word in _WORDS]
    counts = [f"{plural(n, 'step')} {word}" for n, word in numbers if n]
    blocks = [
        f"# {escaped(data.title)}: {data.status}",
        escaped(data.doc.strip().split("\n\n")[0].replace("\n", " ")),
        f"Run `{clean(data.run_id)}`, {moment(data.started)}, took {duration(data.seconds)}: {', '.join(counts)}.",
    ]
    for step in data.steps:
        if step.status == "failed":
            blocks.append(f"**{escaped(step.name)} failed**\n\n{fenced(step.message)}")
    if data.rows:
        blocks.append(
            "\n".join(
                f"- {escaped(c)}: {escaped(h)}" for c in headline_columns(data.rows) if (h := headline(data.rows, c))
            )
        )
        blocks.append(
            table([{"": label, **row} for label, row in data.rows.items()], columns_of([{"": 0}, *data.rows.values()]))
        )
    for step in data.steps:
        for title, rows in step.tables.items():
            if rows:
                blocks += [f"### {escaped(step.name)}: {escaped(title)}", table(rows, columns_of(rows))]
    blocks += _examples(data.steps)
    blocks += ["## Steps", _steps(data.steps)]
    if lost := losses(data.steps):
        blocks += ["## Lost and done again", table(lost, list(lost[0]))]
    blocks.append(listing("## Parameters", data.parameters))
    blocks += ["## Run it again", fenced(data.command)] if data.command else []
    blocks.append(listing("## Provenance", data.provenance))
    return "\n\n".join(block for block in blocks if block.strip()) + "\n"


_WORDS = (("done", "run"), ("hit", "reused"), ("failed", "failed"), ("pending", "not run"))


def _steps(steps: Sequence[StepReport]) -> str:
    rows = [
        {
            "step": s.name,
            "status": dict(_WORDS).get(s.status, s.status),
            "time": s.seconds,
            "retries": s.retries or None,
            "id": s.step_id[:12] or None,
            "inputs": ", ".join(f"{name}: {source}" for name, source, _ in s.inputs) or None,
        }
        for s in steps[:_STEPS]
    ]
    more = f"\n\n{plural(len(steps) - _STEPS, 'further step')} in report.html." if len(steps) > _STEPS else ""
    return table(rows, list(rows[0]) if rows else []) + more


def _examples(steps: Sequence[StepReport]) -> list[str]:
    blocks = []
    for title, given in cards(steps).items():
        blocks.append(f"## {escaped(title)}")
        for card in given[:_EXAMPLES]:
            blocks.append("> " + escaped(card.title).replace("\n", "  \n> "))
            for heading, items in card.columns.items():
                lines = [
                    f"{i}. {'**' if good else ''}{inline(text)}{' ✓**' if good else ''}"
                    for i, (text, good) in enumerate(items, 1)
                ]
                blocks.append(f"*{escaped(heading)}*\n\n" + "\n".join(lines))
        if len(given) > _EXAMPLES:
            blocks.append(f"{len(given) - _EXAMPLES} more in report.html.")
    return blocks


def table(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    texts: Mapping[str, Sequence[str]] | None = None,
    directions: Mapping[str, int] | None = None,
    contenders: Collection[int] | None = None,
) -> str:
    """The best value of a column is bold; the rest is as for `orchestrator.report.markup.table`."""
    if not rows:
        return ""
    marked = kept_rows(rows)
    shown: list[list[str]] = []
    for column in columns:
        values = [row.get(column) for row in rows]
        winners = best(values, column, None if directions is None else directions.get(column, 0), contenders)
        written = [inline(text) for text in (texts or {}).get(column) or cells(values, column)]
        shown.append([f"**{t}**" if i in winners and t != NOTHING else t for i, t in enumerate(written)])
    numeric = [all(v is None or is_number(v) for v in (row.get(c) for row in rows)) for c in columns]
    lines = ["| " + " | ".join(inline(c) for c in columns) + " |"]
    lines.append("|" + "|".join(" ---: " if right else " --- " for right in numeric) + "|")
    for i in marked:
        shown[0][i] += " ★"
    lines += ["| " + " | ".join(row) + " |" for row in zip(*shown, strict=True)]
    return "\n".join(lines)


def listing(heading: str, values: Mapping[str, Any]) -> str:
    return (
        f"{heading}\n\n" + "\n".join(f"- {inline(k)}: {inline(literal(v))}" for k, v in values.items())
        if values
        else ""
    )


def fenced(text: str) -> str:
    text = clean(text)
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", clean(text).replace("&", "&amp;"))


def inline(text: str) -> str:
    return " ".join(escaped(text).split())
