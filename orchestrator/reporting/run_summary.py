"""The summary of a run: the recipe's table, and the data of its report."""

import platform
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ratchet.orchestrator.job_interface.settings import expect_one_of
from ratchet.orchestrator.plan import Plan, describe_inputs
from ratchet.orchestrator.remarks import read_remarks
from ratchet.orchestrator.reporting.formatting import Estimate, collect_columns
from ratchet.orchestrator.reporting.run_data import WORDS, RunReport, StepReport
from ratchet.orchestrator.run_models import read_models
from ratchet.orchestrator.step import Metric, Output, Row, Summary

if TYPE_CHECKING:  # it imports Ray
    from ratchet.orchestrator.execution.run import Run


def build_summary_table(plan: Plan, summary: Summary) -> dict[str, dict[str, float | None]]:
    """Build the rows of the summary: label -> column -> value or None. Column `time`: total seconds of the row's steps.
    Columns whose counts (`Metric.count`) no step reports are left out. For a summary without rows: the numbers of its
    goals."""
    found: dict[str, dict[str, float | None]] = {}
    for goal in summary.goals if not summary.rows else ():
        for name, value in plan.steps[goal.name].numbers.items():
            found[f"{goal.name}: {name}"] = {"value": value}
    counts = _collect_counts(plan, summary)
    for row in summary.rows:
        cells: dict[str, float | None] = {}
        for title, cell in row.columns.items():
            if title in counts:
                cells[title] = _read_cell(plan, cell)
        found[row.label] = {**cells, "time": _sum_seconds(plan, row)}
    return found


def list_notes(plan: Plan, summary: Summary) -> dict[str, str]:
    """Return the notes on the rows and columns of the summary: label -> notes of its steps (`2 of 3: kept the base`),
    and column -> range of the counts of its metrics."""
    found = {}
    for row in summary.rows:
        repetitions = max(
            (len(cell) for cell in row.columns.values() if not isinstance(cell, Metric)), default=1
        )
        counted = Counter(plan.steps[step.name].result.get("note", "") for step in row.steps)
        del counted[""]
        texts = []
        for note, count in counted.items():
            texts.append(note if repetitions == 1 else f"{count} of {repetitions}: {note}")
        if texts:
            found[row.label] = "; ".join(texts)
    for title, known in _collect_counts(plan, summary).items():
        ends = sorted({min(known, default=0), max(known, default=0)})
        if any(ends):
            found[title] = "–".join(f"{end:,.0f}" for end in ends)
    return found


def _collect_counts(plan: Plan, summary: Summary) -> dict[str, set[float]]:
    """Return column -> counts that its steps report, for columns without counts or with a known one."""
    counts: dict[str, set[float]] = {}
    for row in summary.rows:
        for title, metric in row.metrics:
            numbers = plan.steps[metric.step.name].numbers
            if not metric.count:
                counts.setdefault(title, set())
            elif metric.count in numbers:
                counts.setdefault(title, set()).add(numbers[metric.count])
    return counts


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


def build_run_report(run: "Run") -> RunReport:
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
        status=run.word,
        started=about["started"],
        seconds=time.time() - about["started"],
        command=about["command"],
        parameters=about["parameters"],
        rows=build_summary_table(run.plan, run.summary),
        remarks=read_remarks(run.run_log),
        notes=list_notes(run.plan, run.summary),
        directions=_list_directions(run.summary),
        baselines=[row.label for row in run.summary.rows if row.baseline],
        details=[row.label for row in run.summary.rows if row.detail],
        comparisons=run.summary.comparisons,
        plots=run.summary.plots,
        best=_list_best(run),
        steps=[_build_step(run, name, last[name], retries[name]) for name in run.plan.steps],
        provenance={**about["versions"], "machine": f"{platform.system()} {platform.machine()}"},
    )


def _list_directions(summary: Summary) -> dict[str, int]:
    """Return column -> direction of its first metric."""
    found: dict[str, int] = {}
    for row in reversed(summary.rows):
        found |= row.directions
    return found


def _list_best(run: "Run") -> dict[str, str]:
    """Return title -> command that exports the model, for the models that the run ended with."""
    titles = {}
    for one in read_models(run.plan.store, run.run_log):
        if not one.best_as:
            continue
        kind = f"best {one.best_as}" if one.changed else f"unchanged base, offered as {one.best_as}"
        title = f"{kind}: {one.name}  {one.format_metric()}"
        titles[title] = f"ratchet export {one.name} FOLDER"
    return titles


def _build_step(run: "Run", name: str, last: Mapping[str, Any], retries: int) -> StepReport:
    """Build the report of a step. last: kind of event -> the step's last event of this kind."""
    planned = run.plan.steps[name]
    seconds = None
    if planned.commit:
        seconds = planned.commit.record["seconds"]
    elif "failed" in last and "started" in last:
        seconds = last["failed"]["t"] - last["started"]["t"]
    message = run.failures.get(name) or planned.result.get("note", "")
    if "skipped" in last:
        message = f"needs {last['skipped']['because']}, which failed"
    status = "hit" if "hit" in last else run.status[name].value
    if status not in WORDS:
        status = "pending"
    job = planned.step.job
    directions = {}
    for rows in planned.result.get("tables", {}).values():
        for column in collect_columns(rows):
            directions[column] = job.direction(column)
    return StepReport(
        name=name,
        job=job.name,
        directions=directions,
        status=status,
        step_id=planned.step_id,
        retries=retries,
        seconds=seconds,
        inputs=_list_inputs(run.plan, name),
        config=asdict(planned.step.config),
        **{key: planned.result.get(key, {}) for key in ("metrics", "tables", "curves", "cases")},
        message=message,
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
    values = []
    for metric in cell:
        planned = plan.steps[metric.step.name]
        if planned.manifest is None:
            return None
        if metric.name in planned.numbers:
            values.append(planned.numbers[metric.name])
    if not values:
        return None
    return Estimate.of_mean(values)


def _sum_seconds(plan: Plan, row: Row) -> float | None:
    total = 0.0
    for step in row.steps:
        commit = plan.steps[step.name].commit
        if commit is None:
            return None
        total += commit.record["seconds"]
    return total if row.steps else None
