"""Differences between two runs: parameters, numbers of the table, and settings, inputs and code of the steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from ratchet.errors import StoreError
from ratchet.orchestrator.fingerprint import describe_changes
from ratchet.orchestrator.reporting import report_json
from ratchet.orchestrator.reporting.formatting import format_setting, judge_difference
from ratchet.orchestrator.reporting.report import render_template
from ratchet.orchestrator.reporting.run_data import RunReport, StepReport
from ratchet.orchestrator.reporting.tables import build_table
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class NumberChange:
    """A number that is in the tables of both runs."""

    row: str
    column: str
    before: float
    after: float
    verdict: str
    """See `judge_difference`."""


@dataclass(frozen=True)
class StepChange:
    """A step with another step id, or a step of only one of the runs."""

    name: str
    changes: tuple[str, ...]
    seconds: tuple[float | None, float | None]


@dataclass(frozen=True)
class RunDiff:
    """The differences between two runs."""

    runs: tuple[str, str]
    seconds: tuple[float, float]
    parameters: Mapping[str, tuple[Any, Any]]
    """Name -> (before, after), for the parameters that differ."""
    numbers: tuple[NumberChange, ...]
    steps: tuple[StepChange, ...]
    equal_steps: int
    """Number of steps with the same step id in both runs."""


def compare_runs(store: Store, before: RunLog, after: RunLog) -> RunDiff:
    """Compare two runs that have ended, successfully or not. Raises StoreError if a run has not ended."""
    one, other = (_read(run_log) for run_log in (before, after))
    changed = []
    equal = 0
    for name, (old, new) in _pair(*({step.name: step for step in run.steps} for run in (one, other))).items():
        if old and new and old.step_id and old.step_id == new.step_id:
            equal += 1
            continue
        seconds = (old.seconds if old else None, new.seconds if new else None)
        changed.append(StepChange(name, tuple(_describe(store, old, new)), seconds))
    return RunDiff(
        (one.run_id, other.run_id),
        (one.seconds, other.seconds),
        {name: pair for name, pair in _pair(one.parameters, other.parameters).items() if pair[0] != pair[1]},
        tuple(_compare_numbers(one, other)),
        tuple(changed),
        equal,
    )


def render_diff(diff: RunDiff) -> str:
    """Return the HTML page of a difference."""
    rows = []
    for one in diff.numbers:
        if one.after != one.before:
            rows.append({**asdict(one), "difference": one.after - one.before})
    parameters = []
    for name, (old, new) in diff.parameters.items():
        parameters.append({"parameter": name, "before": old, "after": new})
    texts = {}
    for name in ("before", "after"):
        texts[name] = [format_setting(row[name]) for row in parameters]
    order = ("row", "column", "before", "after", "difference", "verdict")
    numbers = build_table([{name: row[name] for name in order} for row in rows], {}, directions={})
    changed = build_table(parameters, {}, texts, directions={})
    return render_template("diff.html.j2", data=diff, numbers=numbers, parameters=changed)


def _pair(before: Mapping[str, T], after: Mapping[str, T]) -> dict[str, tuple[T | None, T | None]]:
    """Return name -> (before, after), with None for a missing value, for all names in order."""
    found: dict[str, tuple[T | None, T | None]] = {}
    for name in {**before, **after}:
        found[name] = (before.get(name), after.get(name))
    return found


def _read(run_log: RunLog) -> RunReport:
    """Return the report of a run, with the recipe's names of rows and columns: without notes and counts, which vary."""
    found = report_json.read(run_log)
    if found is None:
        raise StoreError(f"run {run_log.run_id}: no report; expected a run that ended; give its command again")
    named = (run_log.read("plan.json") or {}).get("rows", ())
    rows = {}
    if len(named) != len(found.rows):  # a summary without rows shows its goals, without notes
        return found
    for row, cells in zip(named, found.rows.values(), strict=True):
        titles = {}
        for c in cells:
            for title in row["columns"]:
                if c == title or c.startswith(f"{title} ("):
                    titles[c] = title
        rows[row["label"]] = {titles.get(name, name): cell for name, cell in cells.items()}
    return replace(found, rows=rows)


def _describe(store: Store, before: StepReport | None, after: StepReport | None) -> list[str]:
    """Return the changes between two versions of a step; only the settings if one of them has no result."""
    if before is None or after is None:
        return ["removed" if after is None else "added"]
    commits = []
    for step in (before, after):
        commits.append(store.lookup(step.step_id) if step.step_id else None)
    if commits[0] and commits[1]:
        return describe_changes(commits[0].fingerprint, commits[1].fingerprint)
    if commits[0] is None:
        missing = "before"
    else:
        missing = "after"
    return [*describe_changes({"config": before.config}, {"config": after.config}), f"has no result {missing}"]


def _compare_numbers(one: RunReport, other: RunReport) -> Iterator[NumberChange]:
    for row, columns in one.rows.items():
        for column, before in columns.items():
            after = other.rows.get(row, {}).get(column)
            if before is not None and after is not None and column != "time":
                yield NumberChange(row, column, float(before), float(after), judge_difference(before, after))
