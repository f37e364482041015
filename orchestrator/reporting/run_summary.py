"""The summary of a run: the recipe's table, and the data of its report."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping
from typing import Any

from ratchet.orchestrator.execution.outcome import Outcome
from ratchet.orchestrator.execution.schedule import Status
from ratchet.orchestrator.job_interface.settings import suggest
from ratchet.orchestrator.plan import Plan, describe_inputs, get_config
from ratchet.orchestrator.reporting.run_data import RunReport, StepReport
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import Output, Row, Summary

STATUS_WORDS = {
    Status.DONE: "done",
    Status.FAILED: "failed",
}


def build_summary_table(plan: Plan, summary: Summary) -> dict[str, dict[str, float | None]]:
    """Build the rows of the summary: label -> column -> value or None. `time`: seconds of the row's steps. The notes of
    the row's steps stand behind its label."""
    return {
        _describe_row(plan, row): {**_collect_values(plan, row), "time": _sum_seconds(plan, row)}
        for row in summary.rows
    }


def list_unreported_metrics(plan: Plan, summary: Summary) -> list[str]:
    """Return a sentence for each metric of the table that its finished step does not report as a number."""
    lines = []
    for row in summary.rows:
        for title, metric in row.columns.items():
            manifest = plan.steps[metric.step.name].manifest
            found = manifest.result.get("metrics", {}) if manifest else {}
            if manifest and not isinstance(found.get(metric.name), int | float):
                known = [name for name, value in found.items() if isinstance(value, int | float)]
                lines.append(
                    f"row '{row.label}', column '{title}': step {metric.step.name} reports no number '{metric.name}';"
                    f" expected one of {', '.join(known)}{suggest(metric.name, known)}"
                )
    return lines


def _describe_row(plan: Plan, row: Row) -> str:
    manifests = [plan.steps[step.name].manifest for step in row.steps]
    notes = dict.fromkeys(manifest.result.get("note", "") for manifest in manifests if manifest)
    text = "; ".join(filter(None, notes))
    return f"{row.label} ({text})" if text else row.label


def build_run_report(run_log: RunLog, outcome: Outcome) -> RunReport:
    """Build the data of the report from the plan, the store and the run log."""
    about = run_log.read("about.json")
    assert about is not None  # this process wrote it
    events = run_log.events()
    hits = {event["step"] for event in events if event["event"] == "hit"}
    retries: dict[str, int] = {}
    for event in events:
        if event["event"] == "retry":
            retries[event["step"]] = retries.get(event["step"], 0) + 1
    started = {event["step"]: event["t"] for event in events if event["event"] == "started"}
    failed = {event["step"]: event["t"] for event in events if event["event"] == "failed"}
    skipped = {event["step"]: event["because"] for event in events if event["event"] == "skipped"}
    return RunReport(
        title=about["recipe"],
        doc=about["doc"],
        run_id=run_log.run_id,
        status=outcome.word,  # type: ignore[arg-type]
        started=about["started"],
        seconds=time.time() - about["started"],
        command=about["command"],
        parameters=about["parameters"],
        rows=build_summary_table(outcome.plan, outcome.summary),
        steps=[
            _build_step(
                outcome, name, name in hits, retries.get(name, 0), (started.get(name), failed.get(name)), skipped
            )
            for name in outcome.plan.steps
        ],
        provenance={**about["versions"], "machine": f"{platform.system()} {platform.machine()}"},
    )


def _build_step(
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
        status="hit" if hit else STATUS_WORDS.get(outcome.status[name], "pending"),  # type: ignore[arg-type]
        step_id=planned.step_id or "",
        retries=retries,
        seconds=planned.commit.record["seconds"] if planned.commit else seconds,
        started=None if hit else started,
        inputs=_list_inputs(outcome.plan, name),
        config=get_config(planned.step),
        metrics=result.get("metrics", {}),
        tables=result.get("tables", {}),
        curves=result.get("curves", {}),
        cases=result.get("cases", {}),
        message=message or result.get("note", ""),
        lost=planned.commit.record.get("lost", []) if planned.commit else [],
    )


def _list_inputs(plan: Plan, name: str) -> list[tuple[str, str, str]]:
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


def _collect_values(plan: Plan, row: Row) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for column, metric in row.columns.items():
        manifest = plan.steps[metric.step.name].manifest
        value = manifest.result.get("metrics", {}).get(metric.name) if manifest else None
        values[column] = float(value) if isinstance(value, int | float) else None
    return values


def _sum_seconds(plan: Plan, row: Row) -> float | None:
    commits = [plan.steps[step.name].commit for step in row.steps]
    known = [commit.record["seconds"] for commit in commits if commit is not None]
    return sum(known) if known and len(known) == len(commits) else None
