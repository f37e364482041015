"""The summary of a run: the recipe's table, and the data of its report."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ratchet.orchestrator.execution.schedule import Status
from ratchet.orchestrator.job_interface.settings import expect_one_of
from ratchet.orchestrator.plan import Plan, describe_inputs
from ratchet.orchestrator.reporting.formatting import Estimate
from ratchet.orchestrator.reporting.run_data import RunReport, StepReport
from ratchet.orchestrator.run_models import read_best
from ratchet.orchestrator.step import Metric, Output, Row, Summary

if TYPE_CHECKING:  # it imports Ray
    from ratchet.orchestrator.execution.run import Run


def build_summary_table(plan: Plan, summary: Summary) -> dict[str, dict[str, float | None]]:
    """Build the rows of the summary: label -> column -> value or None. Column `time`: total seconds of the row's steps.
    The notes of these steps follow the label, and counts (`Metric.count`) follow the titles. For a summary without
    rows: the numbers of its goals."""
    found: dict[str, dict[str, float | None]] = {}
    if not summary.rows:
        for goal in summary.goals:
            for name, value in plan.steps[goal.name].numbers.items():
                found[f"{goal.name}: {name}"] = {"value": value}
        return found
    titles = _name_columns(plan, summary)
    for row in summary.rows:
        found[_describe_row(plan, row)] = {
            **{titles[title]: _read_cell(plan, cell) for title, cell in row.columns.items() if title in titles},
            "time": _sum_seconds(plan, row),
        }
    return found


def list_unreported_metrics(plan: Plan, summary: Summary) -> list[str]:
    """Return a sentence for each metric of the table that its finished step does not report as a number."""
    lines = []
    for row in summary.rows:
        for title, metric in row.metrics:
            planned = plan.steps[metric.step.name]
            has_rows = not metric.count or metric.count in planned.numbers
            if planned.manifest and has_rows and metric.name not in planned.numbers:
                lines.append(
                    f"row '{row.label}', column '{title}': step {metric.step.name} reports no number '{metric.name}';"
                    f" {expect_one_of(planned.numbers, metric.name)}"
                )
    return lines


def _describe_row(plan: Plan, row: Row) -> str:
    notes = Counter(plan.steps[step.name].result.get("note", "") for step in row.steps)
    several = max((len(cell) for cell in row.columns.values() if not isinstance(cell, Metric)), default=1)
    text = "; ".join(f"{n} of {several}: {note}" if several > 1 else note for note, n in notes.items() if note)
    if text:
        return f"{row.label} ({text})"
    return row.label


def _name_columns(plan: Plan, summary: Summary) -> dict[str, str]:
    """Return column -> title with the range of its counts. Columns whose counts no step reports are left out."""
    counts: dict[str, list[float]] = {}
    for title, metric in (pair for row in summary.rows for pair in row.metrics):
        numbers = plan.steps[metric.step.name].numbers
        if not metric.count or metric.count in numbers:
            counts.setdefault(title, []).append(numbers.get(metric.count, 0))
    ends = {title: sorted({min(found), max(found)}) for title, found in counts.items()}
    return {
        title: f"{title} ({'–'.join(f'{n:,.0f}' for n in found)})" if any(found) else title
        for title, found in ends.items()
    }


def build_run_report(run: Run) -> RunReport:
    """Build the data of the report from the plan, the store and the run log."""
    about = run.run_log.read("about.json")
    assert about is not None  # this process wrote it
    events = run.run_log.events()
    retries = Counter(event["step"] for event in events if event["event"] == "retry")
    last: dict[str, dict[str, Any]] = {name: {} for name in run.plan.steps}
    for event in events:
        last.setdefault(event["step"], {})[event["event"]] = event
    return RunReport(
        title=about["recipe"],
        doc=about["doc"],
        run_id=run.run_log.run_id,
        status=run.word,  # type: ignore[arg-type]
        started=about["started"],
        seconds=time.time() - about["started"],
        command=about["command"],
        parameters=about["parameters"],
        rows=build_summary_table(run.plan, run.summary),
        best=_list_best(run),
        steps=[_build_step(run, name, last[name], retries[name]) for name in run.plan.steps],
        provenance={**about["versions"], "machine": f"{platform.system()} {platform.machine()}"},
    )


def _list_best(run: Run) -> dict[str, str]:
    """Return title -> Python line that loads the model, for the models that the run ended with."""
    store = run.plan.store
    titles = {}
    for one in read_best(store, run.run_log):
        if one.changed:
            kind = "Best model"
        else:
            kind = "Unchanged base"
        titles[f"{kind}: {one.name}"] = one.write_code(store)
    return titles


def _build_step(run: Run, name: str, last: Mapping[str, Any], retries: int) -> StepReport:
    """Build the report of a step. last: kind of event -> the step's last event of this kind."""
    started, failed = (last[kind]["t"] if kind in last else None for kind in ("started", "failed"))
    planned = run.plan.steps[name]
    hit = "hit" in last
    if failed and started:
        seconds = failed - started
    else:
        seconds = None
    if "skipped" in last:
        message = f"needs {last['skipped']['because']}, which failed"
    else:
        message = ""
    words = {Status.DONE: "done", Status.FAILED: "failed"}
    return StepReport(
        name=name,
        job=planned.step.job.name,
        status="hit" if hit else words.get(run.status[name], "pending"),  # type: ignore[arg-type]
        step_id=planned.step_id,
        retries=retries,
        seconds=planned.commit.record["seconds"] if planned.commit else seconds,
        inputs=_list_inputs(run.plan, name),
        config=asdict(planned.step.config),
        **{key: planned.result.get(key, {}) for key in ("metrics", "tables", "curves", "cases")},
        message=run.failures.get(name, message) or planned.result.get("note", ""),
    )


def _list_inputs(plan: Plan, name: str) -> list[tuple[str, str, str]]:
    step = plan.steps[name].step
    found = []
    for (key, text), (_, ref) in zip(describe_inputs(step), step.references(), strict=True):
        exists = not isinstance(ref, Output) or plan.steps[ref.step.name].manifest
        found.append((key, text, plan.digest_input(ref) if exists else ""))
    return found


def _read_cell(plan: Plan, cell: Metric | Sequence[Metric]) -> float | None:
    """Return a metric, with its interval if the step reports `NAME/interval`. For several metrics, return the mean once
    all their steps are done."""
    if isinstance(cell, Metric):
        numbers = plan.steps[cell.step.name].numbers
        value = numbers.get(cell.name)
        interval = numbers.get(f"{cell.name}/interval")
        if value is None or interval is None:
            return value
        return Estimate(value, interval)
    planned = []
    for metric in cell:
        planned.append((plan.steps[metric.step.name], metric.name))
    values = []
    for step, name in planned:
        if name in step.numbers:
            values.append(step.numbers[name])
    if values and all(step.manifest for step, _ in planned):
        return Estimate.of_mean(values)
    return None


def _sum_seconds(plan: Plan, row: Row) -> float | None:
    commits = []
    for step in row.steps:
        commits.append(plan.steps[step.name].commit)
    known: list[float] = []
    for commit in commits:
        if commit is not None:
            known.append(commit.record["seconds"])
    if known and len(known) == len(commits):
        return sum(known)
    return None
