"""The report of a sweep: plain data in, `report.html` and `report.md` out. Nothing here reads a store or a clock.

    html, markdown = write(folder, SweepReport(recipe="misconceptions", ...))

Both read from the answer to the evidence: the verdict and the winner's settings, all trials in a table, pictures of
what mattered, failures, then what is needed to run the sweep again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.report import markdown as md
from orchestrator.report import save
from orchestrator.report.charts import curves_chart, legend
from orchestrator.report.markup import document, figure, folded, pairs, section
from orchestrator.report.markup import escaped as _e
from orchestrator.report.markup import table as table_element
from orchestrator.report.parts import Chart, Series
from orchestrator.report.sweep_charts import Line, importance_chart, parallel_chart, parallel_key
from orchestrator.report.sweep_parts import (
    DEFAULT,
    SweepReport,
    TrialReport,
    cell,
    facts,
    failures,
    finite,
    headline,
    label_of,
    measured,
    ranked,
    settings_of,
    shares,
    short_names,
    state,
)
from orchestrator.show import clean, shortened

_OPEN = 8
"""Failures that stand open; the rest is folded."""


def write(folder: Path, data: SweepReport) -> tuple[Path, Path]:
    """Writes `report.html` and `report.md` into `folder`, each replaced as a whole; returns both paths."""
    return save(folder, html(data), markdown(data))


def table(data: SweepReport) -> dict[str, dict[str, float | str | None]]:
    """Label (`trial 3 (winner)`) -> column -> value: settings that vary, the metric, status and seconds.

    The best trial stands first; those that were stopped, failed or did not finish follow. A setting is None where the
    trial leaves it to the recipe. `shown` has the same as texts.
    """
    settings = settings_of(data)
    several = any(finite(t.deviation) is not None for t in data.trials)
    rows: dict[str, dict[str, float | str | None]] = {}
    for trial in ranked(data):
        row: dict[str, float | str | None] = {column: given[trial.number] for column, given in settings.items()}
        row[data.metric] = finite(trial.value)
        if several:
            row["±"] = finite(trial.deviation)
        rows[label_of(data, trial)] = {**row, "status": trial.status, "spent": trial.spent, "shared": trial.shared}
    return rows


def shown(data: SweepReport) -> dict[str, dict[str, str]]:
    """The cells of `table` as a person reads them: `0.0002`, `0.4121`, `2 m 05 s`."""
    settings = set(settings_of(data))
    return {
        label: {column: cell(column, value, column in settings) for column, value in row.items()}
        for label, row in table(data).items()
    }


def markdown(data: SweepReport) -> str:
    """GitHub's Markdown; data is escaped as in a run's report."""
    rows, columns, style = _printed(data)
    winner = _trial(data, data.winner)
    blocks = [
        f"# {md.escaped(data.recipe)}: sweep {state(data)}",
        f"Sweep `{clean(data.sweep_id)}`: {md.inline(', '.join(facts(data)))}.",
        f"**{md.inline(data.verdict)}**" if data.verdict.strip() else "",
    ]
    if winner:
        blocks.append(md.listing(f"## {md.inline(headline(data, winner))}", winner.settings or {DEFAULT: "all"}))
        blocks.append(md.fenced(data.winner_command) if data.winner_command else "")
    blocks += ["## Trials", md.table(rows, columns, **style)] if rows else []
    importance = {name: f"{100 * share:.0f} %" for name, share in shares(data).items()}
    blocks.append(md.listing("## Share of the metric's variance", importance))
    for reason, numbers in failures(data).items():
        blocks.append(f"**{_named(numbers)} failed**\n\n{md.fenced(reason)}")
    blocks += ["## Notes", "\n".join(f"- {md.inline(note)}" for note in data.notes)] if data.notes else []
    blocks.append(md.listing("## Space", data.space))
    blocks += ["## Fixed", md.fenced("\n".join(data.fixed))] if data.fixed else []
    blocks += ["## Run it again", md.fenced(data.command)] if data.command else []
    blocks.append(md.listing("## Provenance", data.provenance))
    return "\n\n".join(block for block in blocks if block.strip()) + "\n"


def html(data: SweepReport) -> str:
    """The page. Every text of `data` is escaped, and the page's policy forbids loads and any other script."""
    notes = "".join(f"<li>{_e(note)}</li>" for note in data.notes)
    sections = [
        _header(data),
        _result(data),
        _trials(data),
        _pictures(data),
        _failed(data),
        section("Notes", f"<ul>{notes}</ul>") if notes else "",
        _again(data),
    ]
    return document(f"{data.recipe} · {data.sweep_id}", sections)


def _header(data: SweepReport) -> str:
    word = state(data)
    style = "interrupted" if word == "unfinished" else word
    told = "".join(f"<span>{_e(fact)}</span>" for fact in facts(data))
    return (
        f'<header><h1>{_e(data.recipe)}: sweep <span class="status {style}">{word}</span></h1>'
        f'<p class="facts"><code>{_e(data.sweep_id)}</code> {told}</p></header>'
    )


def _result(data: SweepReport) -> str:
    winner = _trial(data, data.winner)
    body = f'<p class="verdict">{_e(data.verdict)}</p>' if data.verdict.strip() else ""
    if winner:
        body += f"<h3>{_e(headline(data, winner))}</h3>"
        settings = pairs("Its settings", winner.settings)
        settings = settings or "<p>All settings are the recipe's defaults.</p>"
        body += f'<div class="scroll">{settings}</div>'
        body += f"<h4>Run it</h4><pre>{_e(data.winner_command)}</pre>" if data.winner_command else ""
    return section("Result", body) if body else ""


def _trials(data: SweepReport) -> str:
    if not data.trials:
        return ""
    rows, columns, style = _printed(data)
    style["texts"] = {column: [shortened(text, 40) for text in given] for column, given in style["texts"].items()}
    trials = ranked(data)
    chosen = {i for i, trial in enumerate(trials) if trial.number == data.winner}
    quiet = {i for i, trial in enumerate(trials) if trial.status != "finished"}
    body = table_element(rows, columns, chosen=chosen, quiet=quiet, **style)
    body += '<p class="note">spent: time of the steps that a trial computed; shared: of those it found computed.</p>'
    return section("Trials", body + _seeds(data, trials))


def _seeds(data: SweepReport, trials: Sequence[TrialReport]) -> str:
    """The metric of every seed, folded; '' where there is one each."""
    names = [f"seed {i + 1}" for i in range(max(len(t.values) for t in trials))]
    if len(names) < 2:
        return ""
    values = [dict(zip(names, map(finite, t.values), strict=False)) for t in trials]
    texts = {name: [cell(data.metric, row.get(name), False) for row in values] for name in names}
    rows = [{"": label_of(data, trial), **row} for trial, row in zip(trials, values, strict=True)]
    listed = table_element(rows, ["", *names], texts=texts, directions={})
    return f"<details><summary>Every seed</summary>{listed}</details>"


def _pictures(data: SweepReport) -> str:
    body = _parallel(data)
    figures = []
    bars = importance_chart(shares(data))
    if bars:
        figures.append(figure("Importance", f"share of the variance of {data.metric}", bars))
    # Those that one looks for come first: they have a colour of their own.
    first = (data.winner, data.default)
    curves = sorted((t for t in ranked(data) if len(t.curve)), key=lambda t: t.number not in first)
    curves.sort(key=lambda t: t.number != data.winner)
    series = [
        Series(label_of(data, t), range(1, len(t.curve) + 1), t.curve, strong=t.number == data.winner) for t in curves
    ]
    lined = curves_chart(Chart("", "checkpoint", data.metric, series))
    if lined:
        figures.append(figure(data.metric, "held-out, at each checkpoint", lined + legend(series)))
    body += f'<div class="panels">{"".join(figures)}</div>' if figures else ""
    return section("What mattered", body) if body else ""


def _parallel(data: SweepReport) -> str:
    settings = settings_of(data)
    lines = []
    for trial in data.trials:
        value = finite(trial.value)
        if value is None or trial.status not in ("finished", "stopped"):
            continue
        chosen = {name: given[trial.number] for name, given in settings.items()}
        told = [f"{name}: {cell(name, setting, True)}" for name, setting in chosen.items()]
        tip = "\n".join([f"{label_of(data, trial)}, {trial.status}: {measured(data, trial)}", *told])
        roles = trial.number == data.winner, trial.number == data.default, trial.status == "stopped"
        lines.append(Line(tip, chosen, value, *roles))
    space = {short: data.space.get(name, "") for name, short in short_names(data).items()}
    drawn = parallel_chart({name: space[name] for name in settings}, lines, data.metric, data.maximize)
    note = "a line per trial; the better, the higher and the stronger"
    body = f'<div class="scroll">{drawn}</div>{parallel_key(lines)}'
    return figure(f"{data.metric} by settings", note, body, "wide") if drawn else ""


def _failed(data: SweepReport) -> str:
    made = [
        f'<section class="failure"><h2>{_named(numbers)} failed</h2><pre>{_e(reason)}</pre></section>'
        for reason, numbers in failures(data).items()
    ]
    return section("Failures", "".join(made[:_OPEN]) + folded(made[_OPEN:], "failure")) if made else ""


def _again(data: SweepReport) -> str:
    body = f"<h3>Run the sweep again, or go on with it</h3><pre>{_e(data.command)}</pre>" if data.command else ""
    fixed = "\n".join(data.fixed)
    body += f'<div class="scroll">{pairs("Space", data.space)}</div>' if data.space else ""
    body += f"<h4>In all trials</h4><pre>{_e(fixed)}</pre>" if fixed else ""
    body += pairs("Provenance", data.provenance)
    return section("Reproduce", body) if body else ""


def _named(numbers: Sequence[int]) -> str:
    return f"Trial{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _trial(data: SweepReport, number: int | None) -> TrialReport | None:
    return next((trial for trial in data.trials if trial.number == number), None)


def _printed(data: SweepReport) -> tuple[list[dict[str, Any]], list[str], dict[str, Any]]:
    """Rows, columns and how they are shown, for the tables of both files. A stopped trial is never the best."""
    rows = [{"": label, **row} for label, row in table(data).items()]
    columns = list(rows[0]) if rows else [""]
    texts = list(shown(data).values())
    style = {
        "texts": {column: [row[column] for row in texts] for column in columns[1:]},
        "directions": {data.metric: 1 if data.maximize else -1},
        "contenders": [i for i, trial in enumerate(ranked(data)) if trial.status == "finished"],
    }
    return rows, columns, style
