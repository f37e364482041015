"""The report of a run: plain data in, `report.html` and `report.md` out. Nothing here reads a store or a clock.

    html, markdown = write(folder, ReportData(title="misconceptions", ...))

`report.html` is one file without a single network access; `report.md` says the same for a terminal or a pull request.
Texts (queries, passages, errors) are the user's data and are escaped in both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

RunStatus = Literal["finished", "failed", "interrupted"]
StepStatus = Literal["hit", "done", "failed", "pending"]


@dataclass(frozen=True)
class StepReport:
    """One step as the report shows it."""

    name: str
    """As in the recipe: `iter0/mine`."""
    job: str
    """The verb: `mine`. Curves of the same job share a chart."""
    status: StepStatus
    """`hit`: made by an earlier run and used again."""
    step_id: str = ""
    """Hex; empty if the inputs were never made, so that there is none."""
    retries: int = 0
    """How often it was tried again in this run."""
    seconds: float | None = None
    """Wall-clock seconds that the artifact took to make, or until it failed; for a hit: what the earlier run spent."""
    started: float | None = None
    """Seconds since 1970; None if it did not run in this run. Places it in the timeline."""
    inputs: Sequence[tuple[str, str, str]] = ()
    """(field, name of the step or source, hex digest or '')."""
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    """This and the next three as in `jobs.job.Result`."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    examples: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    message: str = ""
    """Why it failed, why it waits, or what a finished step wants to say."""
    lost: Sequence[Mapping[str, Any]] = ()
    """What was lost on the way and done again: `what`, and `amount` in `unit`s and `seconds` (None: not known)."""


@dataclass(frozen=True)
class ReportData:
    """All that a report says."""

    title: str
    """The recipe's name."""
    run_id: str
    status: RunStatus
    started: float
    """Seconds since 1970."""
    seconds: float
    """Wall-clock seconds of the whole run."""
    command: str
    """The command line that runs this again."""
    steps: Sequence[StepReport]
    """In the recipe's order."""
    doc: str = ""
    """What the recipe does; its first paragraph stands below the title."""
    rows: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """The summary: label -> column -> value. Seconds in columns called `time` or `seconds`."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions, commit, kind of machine: label -> text."""


def write(folder: Path, data: ReportData) -> tuple[Path, Path]:
    """Writes `report.html` and `report.md` into `folder`, each replaced as a whole; returns both paths."""
    from orchestrator.report.markdown import markdown
    from orchestrator.report.page import html

    return save(folder, html(data), markdown(data))


def save(folder: Path, html: str, markdown: str) -> tuple[Path, Path]:
    """Both texts as `report.html` and `report.md` in `folder`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "report.html", folder / "report.md"
    for path, text in zip(written, (html, markdown), strict=True):
        # A reader that has the page open while the run goes on never sees half of it.
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    return written
