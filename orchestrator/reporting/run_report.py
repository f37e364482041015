"""`report.html` and `report.md` of a run, from the templates `run.html.j2` and `run.md.j2`.

Nothing here reads a store or a clock. `report.html` is one file that contains its style, charts and script, and loads
nothing. The order is from the result to the evidence: the summary as a chart and a table, training curves, cases, the
timeline and the steps, and what is needed to repeat the run. Sections without data are left out.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ratchet.orchestrator.reporting import charts, run_data
from ratchet.orchestrator.reporting.run_data import RunReport
from ratchet.orchestrator.reporting.templating import render, save

_TIMELINE = 60
"""Maximum number of bars in the timeline; the longest steps are shown."""
_UNITS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
"""Seconds between axis marks; the first value that gives at most six marks is used."""


def write_run_report(folder: Path, data: RunReport) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` into `folder`, each replaced as a whole; return both paths."""
    return save(folder, html(data), markdown(data))


def html(data: RunReport) -> str:
    """Page with every text escaped; its policy forbids loads and any script but its own."""
    return render("run.html.j2", data=data, parts=run_data, charts=charts, timeline=_place_bars(data))


def markdown(data: RunReport) -> str:
    """GitHub's Markdown; data is escaped so that a query with `$x_1 < y$` or a pipe reads as it is."""
    return render("run.md.j2", data=data, parts=run_data)


def _place_bars(data: RunReport) -> dict[str, Any]:
    """Bars and axis marks of the timeline, placed in percent of its width; empty if no step ran."""
    steps = [s for s in data.steps if s.status != "hit"]
    ran = [(s.started, s.seconds, s) for s in steps if s.started is not None and s.seconds is not None]
    if not ran:
        return {}
    begin = min(data.started, *(started for started, _, _ in ran))
    span = max(max(started + seconds for started, seconds, _ in ran) - begin, 1e-3)
    unit = next((u for u in _UNITS if span / u <= 6), 86400 * math.ceil(span / 86400 / 6))
    marks = [unit * i for i in range(int(span / unit) + 1) if unit * i <= span * 0.97]
    shown = sorted(sorted(ran, key=lambda r: -r[1])[:_TIMELINE], key=lambda r: r[0])
    return {
        "marks": [(round(100 * mark / span, 3), _format_mark(mark)) for mark in marks],
        "bars": [(s, round(100 * (at - begin) / span, 3), round(100 * wide / span, 3)) for at, wide, s in shown],
        "left_out": len(ran) - len(shown),
    }


def _format_mark(seconds: float) -> str:
    units = ((86400, "d", 2 * 86400), (3600, "h", 3600), (60, "m", 60), (1, "s", 0))
    return next(f"{seconds / size:g} {name}" for size, name, least in units if seconds >= least)
