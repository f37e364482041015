"""`report.html` and `report.md` of a run, from the templates `run.html.j2` and `run.md.j2`.

Nothing here reads a store or a clock. `report.html` is one file that contains its style, charts and script, and loads
nothing. The order is from the result to the evidence: the summary as a chart and a table, training curves, cases, the
steps, and what is needed to repeat the run. Sections without data are left out.
"""

from __future__ import annotations

from pathlib import Path

from ratchet.orchestrator.reporting import charts, run_data
from ratchet.orchestrator.reporting.run_data import RunReport
from ratchet.orchestrator.reporting.templating import render, save


def write_run_report(folder: Path, data: RunReport) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` into `folder`, each replaced as a whole; return both paths."""
    return save(folder, html(data), markdown(data))


def html(data: RunReport) -> str:
    """Page with every text escaped; its policy forbids loads and any script but its own."""
    return render("run.html.j2", data=data, parts=run_data, charts=charts)


def markdown(data: RunReport) -> str:
    """GitHub's Markdown; data is escaped so that a query with `$x_1 < y$` or a pipe reads as it is."""
    return render("run.md.j2", data=data, parts=run_data)
