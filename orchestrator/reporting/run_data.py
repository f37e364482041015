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
"""Summary: label -> column -> value."""
WORDS = {"done": "run", "hit": "reused", "failed": "failed", "pending": "not run"}
SIGNS = {"done": "✓", "hit": "●", "failed": "✗", "pending": "○"}

_ROUND = re.compile(r"^(?:iter(?:ation)?|round|cycle|generation)\W*\d+", re.IGNORECASE)
_BASELINE = re.compile(r"bm25|zero.?shot|^nearest|baseline|random|lexical|tf.?idf|pretrained|^base\b", re.IGNORECASE)
_KEPT = ("kept", "best", "chosen")

RunStatus = Literal["finished", "failed", "interrupted"]
StepStatus = Literal["hit", "done", "failed", "pending"]


@dataclass(frozen=True)
class StepReport:
    """Step as the report shows it."""

    name: str
    """Name in the recipe: `iter0/mine`."""
    job: str
    """Job: `mine`. Curves of the same job share a chart."""
    status: StepStatus
    """`hit`: reused from an earlier run."""
    step_id: str = ""
    """Hex digest; empty if the inputs were never made."""
    retries: int = 0
    """Number of retries in this run."""
    seconds: float | None = None
    """Wall-clock seconds until it finished or failed; for a hit, the time that the earlier run spent."""
    inputs: Sequence[tuple[str, str, str]] = ()
    """(field, name of the step or source, hex digest or '')."""
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | int | str] = field(default_factory=dict)
    """See `ratchet.orchestrator.job_interface.job.Result` for this and the next three."""
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    curves: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    cases: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    message: str = ""
    """Reason of a failure or of waiting, or a remark of a finished step."""
    lost: Sequence[Mapping[str, Any]] = ()
    """Lost work: `what`, `amount` in `unit`s and `seconds` (None: not known)."""


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
    """The command line that runs this again."""
    steps: Sequence[StepReport]
    """Steps in the order of the recipe."""
    doc: str = ""
    """Description of the recipe; its first paragraph is shown below the title."""
    rows: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Summary: label -> column -> value. Columns called `time` or `seconds` hold seconds."""
    best: Mapping[str, str] = field(default_factory=dict)
    """Model that the run ended with -> the Python that loads it."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions, commit, kind of machine: label -> text."""


def count_steps(steps: Sequence[StepReport]) -> list[str]:
    """Number of steps per status: `3 steps run`."""
    counts = {word: sum(s.status == status for s in steps) for status, word in WORDS.items()}
    return [f"{pluralize(n, 'step')} {word}" for word, n in counts.items() if n]


def list_facts(data: RunReport) -> list[str]:
    """List start, duration, number of steps, and the time saved by reuse."""
    saved = sum(s.seconds or 0 for s in data.steps if s.status == "hit")
    facts = [format_timestamp(data.started), format_duration(data.seconds), *count_steps(data.steps)]
    return facts + ([f"{format_duration(saved)} saved by reuse"] if saved >= 1 else [])


def build_summary(rows: Rows) -> Table:
    baselines = {i: "quiet" for i, label in enumerate(rows) if is_baseline(label)}
    return build_table([{"": label, **row} for label, row in rows.items()], baselines)


def collect_tables(steps: Sequence[StepReport]) -> list[tuple[str, str, Table]]:
    """Tables of all steps as (step, title, table). Rows whose `kept`, `best` or `chosen` column is true are chosen."""
    tables = []
    for step in steps:
        for title, rows in step.tables.items():
            chosen = {i: "chosen" for i, row in enumerate(rows) if any(row.get(name) is True for name in _KEPT)}
            tables += [(step.name, title, build_table(rows, chosen))] if rows else []
    return tables


def is_iteration(label: str) -> bool:
    """Whether a row of the summary is one of a sequence: `iteration 0`, `iter1`, `round 2`."""
    return bool(_ROUND.search(label))


def strip_iteration(label: str) -> str:
    """Label without its round: the rows of one sequence share it."""
    return _ROUND.sub("", label)


def is_baseline(label: str) -> bool:
    """Whether a row of the summary is a baseline: BM25, zero-shot, ..."""
    return bool(_BASELINE.search(label)) and not is_iteration(label)


def list_headlines(rows: Rows) -> dict[str, str]:
    """Headlines of the first two columns that have a direction, or else of the first two."""
    columns = [c for c in collect_columns(rows.values()) if not is_time(c)]
    columns = [c for c in columns if any(is_finite(row.get(c)) for row in rows.values())]
    columns = [c for c in columns if infer_direction(c)] or columns
    return {column: format_headline(rows, column) for column in columns[:2]}


def format_headline(rows: Rows, column: str) -> str:
    """`0.452 at iteration 1: +0.276 against zero-shot, more than noise` (the best baseline); empty if the name tells
    nothing."""
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
    """Line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    strong: bool = False
    """Drawn thicker, and on top of the others."""


@dataclass(frozen=True)
class Chart:
    """Lines that share their axes: the same curve of every step of one job."""

    job: str
    x_label: str
    y_label: str
    series: Sequence[Series]


def group_curves(steps: Iterable[StepReport]) -> list[Chart]:
    """Group curves of the same job and title into charts; the curves `title | name` of a step share one."""
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
    """Step names without the ending that all share: `iter0/train`, `iter1/train` -> `iter0`, `iter1`."""
    heads, _, tails = zip(*(name.rpartition("/") for name in names), strict=True)
    return list(heads if len(names) > 1 and all(heads) and len(set(tails)) == 1 else names)


@dataclass(frozen=True)
class Case:
    """A query and, by heading, the answers found for it, as (text, correct) in order of rank."""

    title: str
    columns: Mapping[str, Sequence[tuple[str, bool]]]
    left_out: int = 0
    """Columns between the first and the last that are not shown."""

    @property
    def ranks(self) -> list[int | None]:
        """Rank (from 1) of the first correct answer of each column; None if none is shown."""
        return [next((i for i, (_, good) in enumerate(c, 1) if good), None) for c in self.columns.values()]


def collect_cases(steps: Sequence[StepReport], widest: int = 3) -> dict[str, list[Case]]:
    """Collect the cases of all steps by title. Cases of one query are merged, to show before and after side by side."""
    joined: dict[str, dict[str, Any]] = {}
    for step in steps:
        for title, given in step.cases.items():
            for card in given:
                columns = joined.setdefault(title, {}).setdefault(str(card.get("title", "")), {})
                for heading, items in card.get("columns", {}).items():
                    found = [(str(item.get("text", "")), bool(item.get("good"))) for item in items]
                    if columns.get(heading, found) != found:
                        heading = f"{heading} ({step.name})"
                    columns[heading] = found
    for queries in joined.values():
        for query, columns in queries.items():
            headings = list(columns) if len(columns) <= widest else [next(iter(columns)), next(reversed(columns))]
            queries[query] = Case(query, {h: columns[h] for h in headings}, len(columns) - len(headings))
    return {title: list(queries.values()) for title, queries in joined.items()}


def build_lost_work(steps: Sequence[StepReport]) -> Table:
    """Build the table of lost work: what was lost, and how much was repeated."""
    rows = []
    for step in steps:
        for lost in step.lost:
            repeated = None if lost["amount"] is None else f"{lost['amount']:g} {lost['unit']}"
            row = {"step": step.name, "lost work": lost["what"], "repeated": repeated}
            rows.append({**row, "seconds repeated": lost["seconds"]})
    return build_table(rows, {})
