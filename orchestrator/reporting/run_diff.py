"""Differences between two runs: parameters, numbers of the table, and settings, inputs and code of the steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.errors import StoreError
from ratchet.orchestrator.fingerprint import describe_changes
from ratchet.orchestrator.reporting import report_json
from ratchet.orchestrator.reporting.formatting import judge_difference
from ratchet.orchestrator.reporting.run_data import RunReport, StepReport
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store


@dataclass(frozen=True)
class RunDiff:
    """The differences between two runs."""

    runs: tuple[str, str]
    seconds: tuple[float, float]
    parameters: Mapping[str, tuple[Any, Any]]
    """Name -> (before, after), for the parameters that differ."""
    numbers: list[dict[str, Any]]
    """Row, column, before, after, difference and verdict (see `judge_difference`) of each number in both tables."""
    steps: Mapping[str, list[str]]
    """Name -> changes, for the steps with another step id and those of only one of the runs."""
    equal_steps: int
    """Number of steps with the same step id in both runs."""


def compare_runs(store: Store, before: RunLog, after: RunLog) -> RunDiff:
    """Compare two runs that have ended, successfully or not. Raises StoreError if a run has not ended."""
    one = _read(before)
    other = _read(after)
    old_steps = {step.name: step for step in one.steps}
    new_steps = {step.name: step for step in other.steps}
    changed = {}
    equal = 0
    for name in {**old_steps, **new_steps}:
        old = old_steps.get(name)
        new = new_steps.get(name)
        if old and new and old.step_id and old.step_id == new.step_id:
            equal += 1
        else:
            changed[name] = _describe(store, old, new)
    parameters = {}
    for name in {**one.parameters, **other.parameters}:
        pair = (one.parameters.get(name), other.parameters.get(name))
        if pair[0] != pair[1]:
            parameters[name] = pair
    seconds = (one.seconds, other.seconds)
    return RunDiff(
        (one.run_id, other.run_id),
        seconds,
        parameters,
        _compare_numbers(one, other),
        changed,
        equal,
    )


def _read(run_log: RunLog) -> RunReport:
    found = report_json.read(run_log)
    if found is None:
        raise StoreError(
            f"run {run_log.run_id}: no report; expected a run that ended; give its command again"
        )
    return found


def _describe(store: Store, before: StepReport | None, after: StepReport | None) -> list[str]:
    """Return the changes between two versions of a step; only the settings if one of them has no result."""
    if after is None:
        return ["removed"]
    if before is None:
        return ["added"]
    old = store.lookup(before.step_id) if before.step_id else None
    new = store.lookup(after.step_id) if after.step_id else None
    if old and new:
        return describe_changes(old.fingerprint, new.fingerprint)
    missing = "after" if old else "before"
    return [
        *describe_changes({"config": before.config}, {"config": after.config}),
        f"has no result {missing}",
    ]


def _compare_numbers(one: RunReport, other: RunReport) -> list[dict[str, Any]]:
    found = []
    for row, columns in one.rows.items():
        for column, before in columns.items():
            after = other.rows.get(row, {}).get(column)
            if before is None or after is None or column == "time":
                continue
            number = {"row": row, "column": column, "before": float(before), "after": float(after)}
            found.append(
                {**number, "difference": after - before, "verdict": judge_difference(before, after)}
            )
    return found
