"""`report.html` and `report.md` of a sweep, rendered from plain data, without access to a store or a clock.

    html, markdown = write_sweep_report(folder, SweepReport(recipe="misconceptions", ...))

The order is from the result to the evidence: the conclusion and the winner's settings, the table of trials, charts of
the importance of settings and of the curves, failures, and what is needed to repeat the sweep.
"""

from __future__ import annotations

from pathlib import Path

from ratchet.orchestrator.reporting import charts, sweep_data
from ratchet.orchestrator.reporting.sweep_data import SweepReport
from ratchet.orchestrator.reporting.templating import render, save


def write_sweep_report(folder: Path, data: SweepReport) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` into `folder`, each replaced as a whole; return both paths."""
    return save(folder, html(data), markdown(data))


def format_trials(data: SweepReport) -> dict[str, dict[str, str]]:
    """Format the trials: label (`trial 3 (winner)`) -> column -> text (`0.0002`, `0.4121`, `2 m 05 s`)."""
    columns = sweep_data.build_trials(data).columns
    labels = columns[0].texts if columns else ()
    return {label: {c.name: c.texts[i] for c in columns[1:]} for i, label in enumerate(labels)}


def html(data: SweepReport) -> str:
    """Page with every text escaped; its policy forbids loads and any script but its own."""
    return render("sweep.html.j2", data=data, parts=sweep_data, charts=charts)


def markdown(data: SweepReport) -> str:
    """GitHub's Markdown; data is escaped as in the report of a run."""
    shares = {name: f"{100 * share:.0f} %" for name, share in sweep_data.collect_importance(data).items()}
    return render("sweep.md.j2", data=data, parts=sweep_data, shares=shares)
