"""What differs between two runs: parameters, numbers of the table, and the settings, inputs and code of their steps."""

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
    """A number of the tables of both runs."""

    row: str
    column: str
    before: float
    after: float
    verdict: str
    """See `judge_difference`."""


@dataclass(frozen=True)
class StepChange:
    """A step that has another identity, or that only one of the runs has."""

    name: str
    changes: tuple[str, ...]
    seconds: tuple[float | None, float | None]


@dataclass(frozen=True)
class RunDiff:
    """Two runs."""

    runs: tuple[str, str]
    seconds: tuple[float, float]
    parameters: Mapping[str, tuple[Any, Any]]
    """Name -> both values, of those that differ."""
    numbers: tuple[NumberChange, ...]
    steps: tuple[StepChange, ...]
    equal_steps: int
    """Steps with the same identity in both runs."""


def compare_runs(store: Store, before: RunLog, after: RunLog) -> RunDiff:
    """Compare two runs that have ended, well or not. Raises StoreError for one that has not."""
    one, other = (_read(run_log) for run_log in (before, after))
    changed, equal = [], 0
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
    """Return the page of a difference, as `render` does that of a run."""
    rows = [{**asdict(one), "difference": one.after - one.before} for one in diff.numbers if one.after != one.before]
    parameters = [{"parameter": name, "before": old, "after": new} for name, (old, new) in diff.parameters.items()]
    texts = {name: [format_setting(row[name]) for row in parameters] for name in ("before", "after")}
    order = ("row", "column", "before", "after", "difference", "verdict")
    numbers = build_table([{name: row[name] for name in order} for row in rows], {}, directions={})
    changed = build_table(parameters, {}, texts, directions={})
    return render_template("diff.html.j2", data=diff, numbers=numbers, parameters=changed)


def _pair(before: Mapping[str, T], after: Mapping[str, T]) -> dict[str, tuple[T | None, T | None]]:
    """Return name -> both values, of all names in the order of `before` and then of `after`."""
    return {name: (before.get(name), after.get(name)) for name in {**before, **after}}


def _read(run_log: RunLog) -> RunReport:
    """Return the report of a run. Its rows and columns are called as in the recipe: notes and counts may differ."""
    if (found := report_json.read(run_log)) is None:
        raise StoreError(f"run {run_log.run_id}: no report; expected a run that ended; give its command again")
    named, rows = (run_log.read("plan.json") or {}).get("rows", ()), {}
    if len(named) != len(found.rows):  # numbers of goals, which have no notes
        return found
    for row, cells in zip(named, found.rows.values(), strict=True):
        titles = {c: title for c in cells for title in row["columns"] if c == title or c.startswith(f"{title} (")}
        rows[row["label"]] = {titles.get(name, name): cell for name, cell in cells.items()}
    return replace(found, rows=rows)


def _describe(store: Store, before: StepReport | None, after: StepReport | None) -> list[str]:
    """Return what gives a step another identity: of a step without a result, what is known of its settings."""
    if before is None or after is None:
        return ["removed" if after is None else "added"]
    commits = [store.lookup(step.step_id) if step.step_id else None for step in (before, after)]
    if commits[0] and commits[1]:
        return describe_changes(commits[0].fingerprint, commits[1].fingerprint)
    missing = "before" if commits[0] is None else "after"
    return [*describe_changes({"config": before.config}, {"config": after.config}), f"has no result {missing}"]


def _compare_numbers(one: RunReport, other: RunReport) -> Iterator[NumberChange]:
    for row, columns in one.rows.items():
        for column, before in columns.items():
            after = other.rows.get(row, {}).get(column)
            if before is not None and after is not None and column != "time":
                yield NumberChange(row, column, float(before), float(after), judge_difference(before, after))
