"""The data of a sweep's report, and its selection for display: facts, the table of trials, curves. No markup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.orchestrator.reporting.formatting import (
    Estimate,
    Table,
    build_table,
    format_duration,
    format_timestamp,
    pluralize,
)
from ratchet.orchestrator.reporting.run_data import Chart, Series

STATUSES = ("finished", "stopped", "failed", "unfinished")


@dataclass(frozen=True)
class Trial:
    """A trial and its result."""

    settings: Mapping[str, str]
    status: str = "unfinished"
    """`finished`, `stopped` (early stopping), `failed`, or `unfinished`."""
    value: float | None = None
    """Mean objective over the seeds; for a stopped trial, the objective at its last checkpoint."""
    values: Sequence[float] = ()
    """Objective per seed."""
    curve: Sequence[float] = ()
    """Objective of the first seed after each checkpoint."""
    reason: str = ""
    """Why it failed."""
    note: str = ""
    """Note of the deciding step's result, such as that finetuning kept its base."""
    seconds: float = 0.0
    """Wall-clock seconds; 0 if it has not ended."""

    @property
    def estimate(self) -> float | None:
        """The value, with the standard deviation over seeds."""
        if len(self.values) > 1:
            return Estimate.of_mean(self.values)
        return self.value


@dataclass(frozen=True)
class SweepReport:
    """Data of the report of a sweep."""

    recipe: str
    sweep_id: str
    metric: str
    """Metric as given by the user: `map@25`."""
    maximize: bool
    started: float
    """Seconds since 1970."""
    seconds: float
    """Wall-clock seconds of the whole sweep."""
    command: str
    """Command that repeats or continues the sweep."""
    space: Mapping[str, str]
    """Setting -> its distribution as written: `loguniform(1e-5, 1e-3)`."""
    fixed: Sequence[str]
    """`name=value` settings of all trials: plain values of the space, and `--set`."""
    trials: Sequence[Trial]
    """The trials; trial 1 is the first of them. A trial without settings has the recipe's defaults."""
    conclusion: str = "no trial finished"
    """One sentence on whether the winner is better than the defaults beyond noise."""
    winner_command: str = ""
    """Command that runs the recipe with the winner's settings."""
    notes: Sequence[str] = ()
    """Notes, such as why training does not continue from fewer epochs."""
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def winner(self) -> int | None:
        """Number of the best finished trial, and of the first of equal ones, so that the defaults win ties."""
        number = next(iter(rank_trials(self)), 0)
        if number and self.trials[number - 1].status == "finished":
            return number
        return None

    @property
    def best(self) -> Trial | None:
        """The winner."""
        return self.trials[self.winner - 1] if self.winner else None


def list_facts(data: SweepReport) -> list[str]:
    """List start, duration, and the number of trials per status."""
    facts = [format_timestamp(data.started), format_duration(data.seconds)]
    for status in STATUSES:
        count = sum(trial.status == status for trial in data.trials)
        if count:
            facts.append(f"{pluralize(count, 'trial')} {status}")
    return facts


def summarize_status(data: SweepReport) -> str:
    statuses = {trial.status for trial in data.trials}
    if not statuses or "unfinished" in statuses:
        return "unfinished"
    return "failed" if statuses == {"failed"} else "finished"


def format_label(data: SweepReport, number: int) -> str:
    """Format a trial: `trial 3 (winner) (a note)`."""
    trial = data.trials[number - 1]
    label = f"trial {number}"
    if number == data.winner:
        label += " (winner)"
    if not trial.settings:
        label += " (defaults)"
    if trial.note:
        label += f" ({trial.note})"
    return label


def rank_trials(data: SweepReport) -> list[int]:
    """Return the numbers of the trials, the best first; stopped, failed and unfinished trials follow."""
    sign = -1 if data.maximize else 1

    def key(number: int) -> tuple[int, float]:
        trial = data.trials[number - 1]
        return STATUSES.index(trial.status), sign * (trial.value or 0.0)

    return sorted(range(1, len(data.trials) + 1), key=key)


def list_rows(data: SweepReport) -> list[dict[str, Any]]:
    """Return a row per trial, the best first: label, settings that vary, the metric, status and seconds."""
    varied = []
    for name in data.space:
        if len({trial.settings.get(name) for trial in data.trials}) > 1:
            varied.append(name)
    fields = [name.rpartition(".")[2] for name in varied]
    rows = []
    for number in rank_trials(data):
        trial = data.trials[number - 1]
        row: dict[str, Any] = {"": format_label(data, number)}
        for name, short in zip(varied, fields, strict=True):
            row[short if fields.count(short) == 1 else name] = trial.settings.get(name, "default")
        rows.append(
            row
            | {data.metric: trial.estimate, "status": trial.status, "time": trial.seconds or None}
        )
    return rows


def build_trials(data: SweepReport) -> Table:
    """Build the table of the trials; see `list_rows`."""
    styles = {}
    for i, number in enumerate(rank_trials(data)):
        if number == data.winner:
            styles[i] = "chosen"
        elif data.trials[number - 1].status != "finished":
            styles[i] = "quiet"
    return build_table(list_rows(data), styles)


def collect_curves(data: SweepReport) -> Chart:
    """Return the curves of the trials, the best first, which get colours of their own."""
    curves = []
    for number in rank_trials(data):
        values = data.trials[number - 1].curve
        if values:
            curves.append(Series(format_label(data, number), range(1, len(values) + 1), values))
    return Chart("", "checkpoint", data.metric, curves)
