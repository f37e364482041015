"""`report.html`: one file with its style, charts and a little script inside; it loads nothing.

The page reads from the answer to the evidence: the summary as a picture and a table, training curves, examples, then
how the run went (timeline, steps), then what is needed to run it again. A part without data is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.report import ReportData, StepReport
from orchestrator.report.charts import curves_chart, legend, rows_chart
from orchestrator.report.markup import document, figure, folded, pairs, section, sortable, table
from orchestrator.report.markup import escaped as _e
from orchestrator.report.parts import (
    Card,
    cards,
    charts,
    columns_of,
    headline,
    headline_columns,
    is_baseline,
    kept_rows,
    losses,
)
from orchestrator.show import cells, duration, literal, moment, plural, shortened

_WORDS = {"done": "run", "hit": "reused", "failed": "failed", "pending": "not run"}
_SIGNS = {"done": "✓", "hit": "●", "failed": "✗", "pending": "○"}
_TIMELINE = 60
"""Bars in the timeline; of more steps the longest are shown."""
_OPEN = 8
"""Tables and cards that stand open; the rest is folded."""


def html(data: ReportData) -> str:
    """The page. Every text of `data` is escaped, and the page's policy forbids loads and any other script."""
    sections = [
        _header(data),
        _failures(data.steps),
        _result(data),
        _curves(data.steps),
        _tables(data.steps),
        _examples(data.steps),
        _timeline(data),
        _steps(data.steps),
        _losses(data.steps),
        _again(data),
    ]
    return document(f"{data.title} · {data.run_id}", sections)


def _header(data: ReportData) -> str:
    counts = {status: sum(s.status == status for s in data.steps) for status in _WORDS}
    facts = [moment(data.started), duration(data.seconds)]
    facts += [f"{plural(n, 'step')} {_WORDS[status]}" for status, n in counts.items() if n]
    saved = sum(s.seconds or 0 for s in data.steps if s.status == "hit")
    if saved >= 1:
        facts.append(f"{duration(saved)} saved by reuse")
    lead, _, rest = data.doc.strip().partition("\n\n")
    doc = f'<p class="lead">{_e(" ".join(lead.split()))}</p>' if lead else ""
    if rest.strip():
        paragraphs = "".join(f'<p class="pre">{_e(p)}</p>' for p in rest.split("\n\n") if p.strip())
        doc += f"<details><summary>What the recipe does</summary>{paragraphs}</details>"
    return (
        f'<header><h1>{_e(data.title)} <span class="status {_e(data.status)}">{_e(data.status)}</span></h1>'
        f'{doc}<p class="facts"><code>{_e(data.run_id)}</code> '
        f"{''.join(f'<span>{_e(fact)}</span>' for fact in facts)}</p></header>"
    )


def _failures(steps: Sequence[StepReport]) -> str:
    return "".join(
        f'<section class="failure"><h2>{_e(s.name)} failed</h2><pre>{_e(s.message) or "no message"}</pre></section>'
        for s in steps
        if s.status == "failed"
    )


def _result(data: ReportData) -> str:
    if not data.rows:
        return ""
    figures = [
        figure(column, headline(data.rows, column), rows_chart(data.rows, column))
        for column in headline_columns(data.rows)
    ]
    panels = f'<div class="panels">{"".join(figures)}</div>' if figures else ""
    columns = columns_of(data.rows.values())
    rows = [{"": label, **values} for label, values in data.rows.items()]
    quiet = {i for i, label in enumerate(data.rows) if is_baseline(label)}
    return section("Result", panels + table(rows, ["", *columns], quiet=quiet))


def _curves(steps: Sequence[StepReport]) -> str:
    figures = []
    for chart in charts(steps):
        drawn = curves_chart(chart)
        where = chart.series[0].label if len(chart.series) == 1 else chart.job
        if drawn:
            figures.append(figure(chart.y_label, where, drawn + legend(chart.series)))
    return section("Training", f'<div class="panels">{"".join(figures)}</div>') if figures else ""


def _tables(steps: Sequence[StepReport]) -> str:
    made = [
        figure(title, step.name, table(rows, columns_of(rows), chosen=kept_rows(rows)), "table")
        for step in steps
        for title, rows in step.tables.items()
        if rows
    ]
    return (
        section("Tables", f'<div class="panels">{"".join(made[:_OPEN])}</div>' + folded(made[_OPEN:], "table"))
        if made
        else ""
    )


def _examples(steps: Sequence[StepReport]) -> str:
    body = ""
    for title, given in cards(steps).items():
        made = [_card(card) for card in given]
        body += f"<h3>{_e(title)}</h3>{''.join(made[:_OPEN])}{folded(made[_OPEN:], 'example')}"
    return section("Examples", body) if body else ""


def _card(card: Card) -> str:
    columns = []
    for (heading, items), rank in zip(card.columns.items(), card.ranks, strict=True):
        found = f"right answer at rank {rank}" if rank else f"right answer not in the first {len(items)}"
        listed = "".join(
            f'<li class="good"><span class="clamp"><b class="tick">✓</b> {_e(text)}</span></li>'
            if good
            else f'<li><span class="clamp">{_e(text)}</span></li>'
            for text, good in items
        )
        style = "found" if rank == 1 else ("" if rank else "lost")
        columns.append(f'<div><h4>{_e(heading)} <span class="{style}">{found}</span></h4><ol>{listed}</ol></div>')
    note = f'<p class="note">{plural(card.left_out, "column")} between these left out</p>' if card.left_out else ""
    query = f'<p class="query pre clamp">{_e(card.title)}</p>'
    return f'<article>{query}<div class="answers">{"".join(columns)}</div>{note}</article>'


def _timeline(data: ReportData) -> str:
    ran = [s for s in data.steps if s.started is not None and s.seconds is not None and s.status != "hit"]
    if not ran:
        return ""
    longest = set(map(id, sorted(ran, key=lambda s: -(s.seconds or 0))[:_TIMELINE]))
    shown = sorted((s for s in ran if id(s) in longest), key=lambda s: s.started or 0)
    begin = (
        min(data.started, *(s.started or 0 for s in ran)) if len(ran) > 1 else min(data.started, ran[0].started or 0)
    )
    span = max(max((s.started or 0) + (s.seconds or 0) for s in ran) - begin, 1e-3)
    unit = _time_unit(span)
    marks = [unit * i for i in range(int(span / unit) + 1) if unit * i <= span * 0.97]
    axis = "".join(f'<i style="left:{100 * m / span:.3f}%"><span>{_e(_clock(m))}</span></i>' for m in marks)
    rows = []
    for s in shown:
        at, wide = 100 * ((s.started or 0) - begin) / span, 100 * (s.seconds or 0) / span
        tries = f" <em>{s.retries} {'retry' if s.retries == 1 else 'retries'}</em>" if s.retries else ""
        rows.append(
            f'<li><span class="who" title="{_e(s.name)}">{_e(s.name)}</span><span class="track">'
            f'<b class="{_e(s.status)}" style="left:{at:.3f}%;width:{wide:.3f}%"></b></span>'
            f'<span class="took">{_e(duration(s.seconds))}{tries}</span></li>'
        )
    rest = len(ran) - len(shown)
    note = f'<p class="note">{plural(rest, "shorter step")} not drawn</p>' if rest else ""
    top = f'<span class="who"></span><span class="track">{axis}</span><span class="took"></span>'
    return section("Timeline", f'<ol class="timeline"><li class="marks">{top}</li>{"".join(rows)}</ol>{note}')


def _time_unit(span: float) -> float:
    """Seconds between marks: about six of them, at round times."""
    units = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
    return next((u for u in units if span / u <= 6), 86400 * math.ceil(span / 86400 / 6))


def _clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:g} s"
    if seconds < 3600:
        return f"{seconds / 60:g} m"
    return f"{seconds / 3600:g} h" if seconds < 2 * 86400 else f"{seconds / 86400:g} d"


def _steps(steps: Sequence[StepReport]) -> str:
    rows = "".join(
        f'<tr class="{_e(s.status)}"><td data-v="{i}">{_more(s)}</td>'
        f'<td class="state" data-v="{_e(s.status)}">{_SIGNS[s.status]} {_WORDS[s.status]}</td>'
        f'<td class="n" data-v="{s.seconds or 0}">{_e(duration(s.seconds))}</td>'
        f'<td class="n" data-v="{s.retries}">{s.retries or ""}</td>'
        f"<td>{'<br>'.join(_input(*given) for given in s.inputs)}</td>"
        f"<td><code>{_e(s.step_id[:10])}</code></td></tr>"
        for i, s in enumerate(steps)
    )
    head = "".join(
        f"<th{' class=n' if n in ('time', 'retries') else ''}>{n}</th>"
        for n in ("step", "status", "time", "retries", "inputs", "id")
    )
    listed = sortable(head, rows, "sortable steps")
    reused = any(s.status == "hit" and s.seconds is not None for s in steps)
    note = '<p class="note">The time of a reused step is what an earlier run spent on it.</p>' if reused else ""
    return section("Steps", listed + note)


def _more(s: StepReport) -> str:
    """A step's name, which unfolds to all that is known of it."""
    metrics = {name: cells([value], name)[0] for name, value in s.metrics.items()}
    config = {name: literal(value) for name, value in s.config.items()}
    body = pairs("Metrics", metrics) + pairs("Settings", config)
    body += pairs("Identity", {"job": s.job, "step id": s.step_id} if s.step_id else {})
    body += f"<h4>Message</h4><pre>{_e(s.message)}</pre>" if s.message else ""
    return f"<details><summary>{_e(s.name)}</summary>{body}</details>" if body else _e(s.name)


def _input(name: str, source: str, digest: str) -> str:
    code = f" <code>{_e(digest[:8])}</code>" if digest else ""
    return f'<span class="field">{_e(name)}</span> <span title="{_e(source)}">{_e(shortened(source, 44))}</span>{code}'


def _losses(steps: Sequence[StepReport]) -> str:
    lost = losses(steps)
    return section("Lost and done again", table(lost, list(lost[0]))) if lost else ""


def _again(data: ReportData) -> str:
    body = f"<h3>Run it again</h3><pre>{_e(data.command)}</pre>" if data.command else ""
    lists = [
        f"<div>{pairs(heading, {k: literal(v) for k, v in values.items()})}</div>"
        for heading, values in (("Parameters", data.parameters), ("Provenance", data.provenance))
        if values
    ]
    body += f'<div class="panels">{"".join(lists)}</div>' if lists else ""
    return section("Reproduce", body) if body else ""
