"""What a run's outcome amounts to: the recipe's table, and the data of its report."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from typing import Any

from orchestrator.journal import Journal
from orchestrator.plan import Plan, config_of, describe_inputs
from orchestrator.report import ReportData, StepReport
from orchestrator.run import Outcome
from orchestrator.schedule import Status
from orchestrator.step import Output, Row, Summary

SHOWN_AS = {
    Status.DONE: "done",
    Status.FAILED: "failed",
}


def table(plan: Plan, summary: Summary) -> dict[str, dict[str, float | None]]:
    """The recipe's rows: label -> column -> value; None for what is not known (yet). `time`: seconds of its steps."""
    return {row.label: {**_values(plan, row), "time": _seconds(plan, row)} for row in summary.rows}


def report_data(journal: Journal, outcome: Outcome) -> ReportData:
    """Everything the report says, from the plan, the store and the journal."""
    about = journal.read("about.json")
    events = journal.events()
    hits = {event["step"] for event in events if event["event"] == "hit"}
    retries: dict[str, int] = {}
    for event in events:
        if event["event"] == "retry":
            retries[event["step"]] = retries.get(event["step"], 0) + 1
    started = {event["step"]: event["t"] for event in events if event["event"] == "started"}
    failed = {event["step"]: event["t"] for event in events if event["event"] == "failed"}
    skipped = {event["step"]: event["because"] for event in events if event["event"] == "skipped"}
    return ReportData(
        title=about["recipe"],
        doc=about["doc"],
        run_id=journal.run_id,
        status=outcome.word,  # type: ignore[arg-type]
        started=about["started"],
        seconds=time.time() - about["started"],
        command=about["command"],
        parameters=about["parameters"],
        rows=table(outcome.plan, outcome.summary),
        steps=[
            _step(outcome, name, name in hits, retries.get(name, 0), (started.get(name), failed.get(name)), skipped)
            for name in outcome.plan.steps
        ],
        provenance={**about["versions"], "machine": f"{platform.system()} {platform.machine()}"},
    )


def _step(
    outcome: Outcome,
    name: str,
    hit: bool,
    retries: int,
    times: tuple[float | None, float | None],
    skipped: Mapping[str, str],
) -> StepReport:
    started, failed = times
    seconds = failed - started if failed and started else None
    planned = outcome.plan.steps[name]
    result: Mapping[str, Any] = planned.manifest.result if planned.manifest else {}
    message = outcome.failures.get(name, f"needs {skipped[name]}, which failed" if name in skipped else "")
    return StepReport(
        name=name,
        job=planned.step.job.name,
        status="hit" if hit else SHOWN_AS.get(outcome.status[name], "pending"),  # type: ignore[arg-type]
        step_id=planned.step_id or "",
        retries=retries,
        seconds=planned.commit.record["seconds"] if planned.commit else seconds,
        started=None if hit else started,
        inputs=_inputs(outcome.plan, name),
        config=config_of(planned.step),
        metrics=result.get("metrics", {}),
        tables=result.get("tables", {}),
        curves=result.get("curves", {}),
        examples=result.get("examples", {}),
        message=message,
        lost=planned.commit.record.get("lost", []) if planned.commit else [],
    )


def _inputs(plan: Plan, name: str) -> list[tuple[str, str, str]]:
    step = plan.steps[name].step
    described = describe_inputs(step)
    digests = []
    for _, ref in step.references():
        if isinstance(ref, Output):
            manifest = plan.steps[ref.step.name].manifest
            digests.append(manifest.part_digest(ref.part) if manifest else "")
        else:
            digests.append(plan.sources.digest(ref))
    return [(key, text, value) for (key, text), value in zip(described, digests, strict=True)]


def _values(plan: Plan, row: Row) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for column, metric in row.columns.items():
        manifest = plan.steps[metric.step.name].manifest
        value = manifest.result.get("metrics", {}).get(metric.name) if manifest else None
        values[column] = float(value) if isinstance(value, int | float) else None
    return values


def _seconds(plan: Plan, row: Row) -> float | None:
    commits = [plan.steps[step.name].commit for step in row.steps]
    known = [commit.record["seconds"] for commit in commits if commit is not None]
    return sum(known) if known and len(known) == len(commits) else None
