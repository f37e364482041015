"""The data of a run's report, and its selection for display: headlines, tables, charts, cases. No markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ratchet.orchestrator.job_interface.job import infer_direction, is_time
from ratchet.orchestrator.reporting.formatting import format_duration, format_timestamp, judge_difference, pluralize
from ratchet.orchestrator.reporting.tables import Table, build_table, collect_columns, is_finite

Rows = Mapping[str, Mapping[str, float | None]]
"""Rows of the summary: label -> column -> value."""
WORDS = {"done": "run", "hit": "reused", "failed": "failed", "pending": "not run"}
SIGNS = {"done": "✓", "hit": "●", "failed": "✗", "pending": "○"}

_ROUND = re.compile(r"^(?:iter(?:ation)?|round|cycle|generation)\W*\d+", re.IGNORECASE)
_BASELINE = re.compile(r"bm25|zero.?shot|^nearest|baseline|random|lexical|tf.?idf|pretrained|^base\b", re.IGNORECASE)
_KEPT = ("kept", "best", "chosen")

RunStatus = Literal["finished", "failed", "interrupted"]
StepStatus = Literal["hit", "done", "failed", "pending"]


@dataclass(frozen=True)
class StepReport:
    """A step in the report of a run."""

    name: str
    """Name in the recipe: `iter0/mine`."""
    job: str
    """Name of the job: `mine`. Curves of the same job share a chart."""
    status: StepStatus
    """`hit`: reused from an earlier run."""
    step_id: str = ""
    """Step id, a hex digest; empty if the inputs do not exist."""
    retries: int = 0
    """Number of retries in this run."""
    seconds: float | None = None
    """Wall-clock seconds until the step finished or failed; for a hit, the seconds in the earlier run."""
    inputs: Sequence[tuple[str, str, str]] = ()
    """(field, name of the step or source, hex digest or '') of each input."""
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    """See `ratchet.orchestrator.job_interface.job.Result` for metrics, tables, curves and cases."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    cases: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    message: str = ""
    """Why the step failed or was skipped, or the note of its result."""


@dataclass(frozen=True)
class RunReport:
    """Data of the report of a run."""

    title: str
    """The recipe's name."""
    run_id: str
    status: RunStatus
    started: float
    """Seconds since 1970."""
    seconds: float
    """Wall-clock seconds of the whole run."""
    command: str
    """The command line that repeats or continues the run."""
    steps: Sequence[StepReport]
    """Steps in the order of the recipe."""
    doc: str = ""
    """Description of the recipe; its first paragraph is shown below the title."""
    rows: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Summary: label -> column -> value. Columns called `time` or `seconds` hold seconds."""
    best: Mapping[str, str] = field(default_factory=dict)
    """`Best model: NAME` or `Unchanged base: NAME` -> the line of Python that loads this model of the run."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions, commit, kind of machine: label -> text."""


def count_steps(steps: Sequence[StepReport]) -> list[str]:
    """Return the number of steps per status as texts: `3 steps run`."""
    counts = {}
    for status, word in WORDS.items():
        counts[word] = sum(s.status == status for s in steps)
    found: list[str] = []
    for word, n in counts.items():
        if n:
            found.append(f"{pluralize(n, 'step')} {word}")
    return found


def list_facts(data: RunReport) -> list[str]:
    """List start, duration, number of steps, and the time saved by reuse."""
    saved = sum(s.seconds or 0 for s in data.steps if s.status == "hit")
    facts = [format_timestamp(data.started), format_duration(data.seconds), *count_steps(data.steps)]
    return facts + ([f"{format_duration(saved)} saved by reuse"] if saved >= 1 else [])


def build_summary(rows: Rows) -> Table:
    baselines = {}
    for i, label in enumerate(rows):
        if is_baseline(label):
            baselines[i] = "quiet"
    return build_table([{"": label, **row} for label, row in rows.items()], baselines)


def collect_tables(steps: Sequence[StepReport]) -> list[tuple[str, str, Table]]:
    """Return (step, title, table) of all tables. Rows with a true `kept`, `best` or `chosen` are marked as chosen."""
    tables = []
    for step in steps:
        for title, rows in step.tables.items():
            chosen = {}
            for i, row in enumerate(rows):
                if any(row.get(name) is True for name in _KEPT):
                    chosen[i] = "chosen"
            if rows:
                tables.append((step.name, title, build_table(rows, chosen)))
    return tables


def is_iteration(label: str) -> bool:
    """Return whether the label of a row names an iteration: `iteration 0`, `iter1`, `round 2`."""
    return bool(_ROUND.search(label))


def strip_iteration(label: str) -> str:
    """Return the label without its iteration, which the rows of one sequence have in common."""
    return _ROUND.sub("", label)


def is_baseline(label: str) -> bool:
    """Return whether the label of a row names a baseline: BM25, zero-shot, ..."""
    return bool(_BASELINE.search(label)) and not is_iteration(label)


def list_headlines(rows: Rows) -> dict[str, str]:
    """Return column -> headline, for the first two columns with a known direction, else for the first two columns."""
    columns = []
    for c in collect_columns(rows.values()):
        if not is_time(c):
            columns.append(c)
    columns = [c for c in columns if any(is_finite(row.get(c)) for row in rows.values())]
    columns = [c for c in columns if infer_direction(c)] or columns
    found: dict[str, str] = {}
    for column in columns[:2]:
        found[column] = format_headline(rows, column)
    return found


def format_headline(rows: Rows, column: str) -> str:
    """Compare the best row of a column with the best baseline: `0.452 at iteration 1: +0.276 against zero-shot, more
    than noise`. Empty if the column has no known direction."""
    known: dict[str, Any] = {label: row[column] for label, row in rows.items() if is_finite(row.get(column))}
    sign = infer_direction(column)
    order = sorted(known, key=lambda label: -sign * known[label])
    ours = [label for label in order if not is_baseline(label)]
    rivals = [label for label in order if is_baseline(label)]
    if not ours or not sign:
        return ""
    against = ""
    if rivals:
        verdict = judge_difference(known[rivals[0]], known[ours[0]])
        against = f": {known[ours[0]] - known[rivals[0]]:+.3f} against {rivals[0]}{f', {verdict}' if verdict else ''}"
    return f"{known[ours[0]]:.3f} at {ours[0]}{against}"


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    strong: bool = False
    """Whether the line is drawn thicker and on top of the others."""


@dataclass(frozen=True)
class Chart:
    """Lines with common axes: the curves with one title, of all steps of one job."""

    job: str
    x_label: str
    y_label: str
    series: Sequence[Series]


def group_curves(steps: Iterable[StepReport]) -> list[Chart]:
    """Group the curves with the same job and title into charts. Curves `title | name` belong to the chart `title`."""
    groups: dict[tuple[str, str], list[tuple[str, str, Mapping[str, Sequence[float]]]]] = {}
    for step in steps:
        for whole, curve in step.curves.items():
            title, _, name = whole.partition(" | ")
            if len(curve.get("x", ())) and len(curve.get("y", ())):
                groups.setdefault((step.job, title), []).append((step.name, name, curve))
    made = []
    for (job, title), curves in groups.items():
        y_label, against, x_label = title.partition(" against ")
        owners = list(dict.fromkeys(step for step, _, _ in curves))
        short = dict(zip(owners, shorten_names(owners), strict=True))
        labels = [name if name and len(owners) == 1 else f"{short[step]} {name}".strip() for step, name, _ in curves]
        series = [Series(label, c["x"], c["y"]) for label, (_, _, c) in zip(labels, curves, strict=True)]
        made.append(Chart(job, x_label if against else "", y_label, series))
    return made


def shorten_names(names: Sequence[str]) -> list[str]:
    """Remove the last part from step names if all have the same: `iter0/train`, `iter1/train` -> `iter0`, `iter1`."""
    heads, _, tails = zip(*(name.rpartition("/") for name in names), strict=True)
    return list(heads if len(names) > 1 and all(heads) and len(set(tails)) == 1 else names)


@dataclass(frozen=True)
class Case:
    """A query and, for each heading, the answers found for it, as (text, correct) in order of rank."""

    title: str
    columns: Mapping[str, Sequence[tuple[str, bool]]]
    left_out: int = 0
    """Number of columns between the first and the last that are not shown."""

    @property
    def ranks(self) -> list[int | None]:
        """Rank (from 1) of the first correct answer in each column; None if no correct answer is shown."""
        found: list[int | None] = []
        for c in self.columns.values():
            found.append(next((i for i, (_, good) in enumerate(c, 1) if good), None))
        return found


def collect_cases(steps: Sequence[StepReport], widest: int = 3) -> dict[str, list[Case]]:
    """Collect the cases of all steps by title, merged by query. With over `widest` columns: only the first and last."""
    joined: dict[str, dict[str, Any]] = {}
    for step in steps:
        for title, given in step.cases.items():
            for card in given:
                columns = joined.setdefault(title, {}).setdefault(str(card.get("title", "")), {})
                for heading, items in card.get("columns", {}).items():
                    found = []
                    for item in items:
                        found.append((str(item.get("text", "")), bool(item.get("good"))))
                    if columns.get(heading, found) != found:
                        heading = f"{heading} ({step.name})"
                    columns[heading] = found
    for queries in joined.values():
        for query, columns in queries.items():
            if len(columns) <= widest:
                headings = list(columns)
            else:
                headings = [next(iter(columns)), next(reversed(columns))]
            queries[query] = Case(query, {h: columns[h] for h in headings}, len(columns) - len(headings))
    return {title: list(queries.values()) for title, queries in joined.items()}
