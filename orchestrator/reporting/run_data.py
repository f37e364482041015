"""The data of a run's report, and its selection for display: headlines, tables, charts, cases. No markup."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.orchestrator.remarks import Remark
from ratchet.orchestrator.reporting.formatting import (
    Table,
    build_table,
    collect_columns,
    format_change,
    format_duration,
    format_timestamp,
    is_finite,
    judge_difference,
    pluralize,
)

WORDS = {"done": "run", "hit": "reused", "failed": "failed", "pending": "not run"}
SIGNS = {"done": "✓", "hit": "●", "failed": "✗", "pending": "○"}


@dataclass(frozen=True)
class StepReport:
    """A step in the report of a run."""

    name: str
    """Name in the recipe: `iter0/mine`."""
    job: str
    """Name of the job: `mine`. Curves of the same job share a chart."""
    status: str
    """`done`, `failed`, `pending`, or `hit`: reused from an earlier run."""
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
    directions: Mapping[str, int] = field(default_factory=dict)
    """Column of the tables -> its direction (see `Job.direction`)."""
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
    status: str
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
    remarks: Mapping[str, Remark] = field(default_factory=dict)
    """Label of a row -> what a person added to it; the empty label is the run itself."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Label of a row, or column -> what tables show behind it in brackets."""
    directions: Mapping[str, int] = field(default_factory=dict)
    """Column of the summary -> its direction."""
    baselines: Sequence[str] = ()
    """The labels of the rows that are baselines."""
    details: Sequence[str] = ()
    """The labels of the rows that the terminal shows only on request."""
    comparisons: Sequence[tuple[str, str]] = ()
    """Labels of rows, (before, after)."""
    plots: Sequence[tuple[str, str]] = ()
    """See `Summary.plots`."""
    best: Mapping[str, str] = field(default_factory=dict)
    """`best embedder: NAME  MAP@25 0.4442`, or the like -> the command that exports this model of the run."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions, commit, kind of machine: label -> text."""


def count_steps(steps: Sequence[StepReport]) -> list[str]:
    """Return the number of steps per status as texts: `3 steps run`."""
    found = []
    for status, word in WORDS.items():
        count = sum(step.status == status for step in steps)
        if count:
            found.append(f"{pluralize(count, 'step')} {word}")
    return found


def list_facts(data: RunReport) -> list[str]:
    """List start, duration, number of steps, the remark on the run, and the time saved by reuse."""
    facts = [
        format_timestamp(data.started),
        format_duration(data.seconds),
        *count_steps(data.steps),
    ]
    if "" in data.remarks:
        facts.append(str(data.remarks[""]))
    saved = sum(step.seconds or 0 for step in data.steps if step.status == "hit")
    if saved >= 1:
        facts.append(f"{format_duration(saved)} saved by reuse")
    return facts


def build_summary(data: RunReport, hidden: Sequence[str] = ()) -> Table:
    """Build the table of the summary, with the notes on its rows and columns. hidden: labels of rows to leave out."""

    def describe(name: str) -> str:
        return f"{name} ({data.notes[name]})" if name in data.notes else name

    rows: list[dict[str, Any]] = []
    quiet = {}
    for label, row in data.rows.items():
        if label in hidden:
            continue
        if label in data.baselines:
            quiet[len(rows)] = "quiet"
        cells: dict[str, Any] = {describe(name): row[name] for name in row}
        remark = data.remarks.get(label, Remark({}))
        if remark.words:
            cells["note"] = remark.words
        rows.append({"": describe(label)} | cells | remark.numbers)
    directions = {describe(name): direction for name, direction in data.directions.items()}
    return build_table(rows, quiet, directions)


def build_comparisons(data: RunReport) -> Table:
    """Build the table of the comparisons, with cells such as `0.8130 → 0.8520 (+0.0390)` for what changed."""
    rows = []
    for before, after in data.comparisons:
        row = {"": f"{before} → {after}"}
        one: Mapping[str, Any] = data.rows[before]
        other: Mapping[str, Any] = data.rows[after]
        for column in one:
            is_known = is_finite(one[column]) and is_finite(other.get(column))
            if is_known and column != "time" and one[column] != other[column]:
                row[column] = format_change(one[column], other[column])
        rows.append(row)
    return build_table(rows)


def collect_tables(steps: Sequence[StepReport]) -> list[tuple[str, str, Table]]:
    """Return (step, title, table) of all tables. Rows with a true `kept` are marked as chosen."""
    tables = []
    for step in steps:
        for title, rows in step.tables.items():
            chosen = {i: "chosen" for i, row in enumerate(rows) if row.get("kept") is True}
            if rows:
                tables.append((step.name, title, build_table(rows, chosen, step.directions)))
    return tables


def list_headlines(data: RunReport) -> dict[str, str]:
    """Return column -> headline, for the first two columns with a known direction, else for the first two columns."""
    known = []
    for column in collect_columns(data.rows.values()):
        if column != "time" and any(is_finite(row.get(column)) for row in data.rows.values()):
            known.append(column)
    directed = [column for column in known if data.directions.get(column)]
    return {column: format_headline(data, column) for column in (directed or known)[:2]}


def format_headline(data: RunReport, column: str) -> str:
    """Compare the best row of a column with the best baseline: `0.452 at iteration 1: +0.276 against zero-shot, more
    than noise`. Empty if the column has no known direction."""
    sign = data.directions.get(column, 0)
    known: dict[str, Any] = {
        label: row[column] for label, row in data.rows.items() if is_finite(row.get(column))
    }
    order = sorted(known, key=lambda label: -sign * known[label])
    ours = next((label for label in order if label not in data.baselines), None)
    rival = next((label for label in order if label in data.baselines), None)
    if ours is None or not sign:
        return ""
    headline = f"{known[ours]:.3f} at {ours}"
    if rival is None:
        return headline
    headline += f": {known[ours] - known[rival]:+.3f} against {rival}"
    verdict = judge_difference(known[rival], known[ours])
    return f"{headline}, {verdict}" if verdict else headline


@dataclass(frozen=True)
class Series:
    """A line of a chart."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Chart:
    """Lines with common axes: the curves with one title, of all steps of one job."""

    job: str
    x_label: str
    y_label: str
    series: Sequence[Series]


def group_curves(steps: Iterable[StepReport]) -> list[Chart]:
    """Group the curves with the same job and title into charts. Curves `title | name` belong to the chart `title`."""
    charts: dict[tuple[str, str], list[Series]] = {}
    for step in steps:
        owner = step.name.rpartition("/")[0] or step.name
        for whole, curve in step.curves.items():
            title, _, name = whole.partition(" | ")
            if curve["x"]:
                series = Series(f"{owner} {name}".rstrip(), curve["x"], curve["y"])
                charts.setdefault((step.job, title), []).append(series)
    found = []
    for (job, title), lines in charts.items():
        y_label, _, x_label = title.partition(" against ")
        found.append(Chart(job, x_label, y_label, lines))
    return found


@dataclass(frozen=True)
class Case:
    """A query and, for each heading, the answers found for it, as (text, correct) in order of rank."""

    title: str
    columns: dict[str, Sequence[tuple[str, bool]]]

    @property
    def ranks(self) -> list[int | None]:
        """Rank (from 1) of the first correct answer in each column; None if no correct answer is shown."""
        found = []
        for answers in self.columns.values():
            found.append(next((rank for rank, (_, good) in enumerate(answers, 1) if good), None))
        return found


def collect_cases(steps: Sequence[StepReport]) -> dict[str, list[Case]]:
    """Collect the cases of all steps by title, merged by query. Of many columns, the first and the last are shown."""
    joined: dict[str, dict[str, Case]] = {}
    for step in steps:
        for title, cards in step.cases.items():
            for card in cards:
                queries = joined.setdefault(title, {})
                case = queries.setdefault(card["title"], Case(card["title"], {}))
                for heading, items in card["columns"].items():
                    answers = [(item["text"], bool(item.get("good"))) for item in items]
                    case.columns.setdefault(heading, answers)
    for queries in joined.values():
        for case in queries.values():
            if len(case.columns) > 3:
                for heading in list(case.columns)[1:-1]:
                    del case.columns[heading]
    return {title: list(queries.values()) for title, queries in joined.items()}
