"""The data of a sweep's report, and its selection for display: ranking, settings, tables, curves. No markup."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ratchet.orchestrator.job_interface.terminal import clean
from ratchet.orchestrator.reporting.formatting import (
    NOTHING,
    format_duration,
    format_number,
    format_timestamp,
    is_number,
    pluralize,
)
from ratchet.orchestrator.reporting.run_data import Chart, Series
from ratchet.orchestrator.reporting.tables import Table, build_table, collect_columns
from ratchet.orchestrator.sweeps.trial_log import Trial

DEFAULT = "default"
"""Text for the value of a setting that a trial leaves to the recipe."""
Value = float | str | None
"""Value of a setting in a trial. None: the recipe's default."""
_STATUSES = ("finished", "stopped", "failed", "unfinished")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class TrialReport(Trial):
    """A trial in the report of a sweep. `settings`: the values of the settings in the space."""

    number: int = 0
    """1, 2, ... in the order in which the trials were first started."""
    deviation: float | None = None
    """Standard deviation over seeds; None with one seed."""
    note: str = ""
    """Note of the deciding step's result, such as that finetuning kept its base."""


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
    trials: Sequence[TrialReport]
    winner: int | None
    """Number of the best trial."""
    default: int | None
    """Number of the trial with the recipe's defaults."""
    conclusion: str
    """One sentence on whether the winner is better than the defaults beyond noise."""
    winner_command: str
    """Command that runs the recipe with the winner's settings."""
    importance: Mapping[str, float]
    """Setting -> share of the metric's variance; the shares sum to 1. May be empty."""
    notes: Sequence[str] = ()
    """Notes, such as why training does not continue from fewer epochs."""
    provenance: Mapping[str, str] = field(default_factory=dict)


def list_facts(data: SweepReport) -> list[str]:
    """List start, duration, and the number of trials per status."""
    counts = {}
    for status in _STATUSES:
        counts[status] = sum(t.status == status for t in data.trials)
    words = []
    for status, n in counts.items():
        if n:
            words.append(f"{pluralize(n, 'trial')} {status}")
    return [format_timestamp(data.started), format_duration(data.seconds), *(words or ["no trials"])]


def summarize_status(data: SweepReport) -> str:
    statuses = {t.status for t in data.trials} or {"unfinished"}
    if "unfinished" in statuses:
        return "unfinished"
    if statuses == {"failed"}:
        return "failed"
    return "finished"


def format_headline(data: SweepReport, winner: TrialReport) -> str:
    """Format the winner's metric: `Trial 3 (winner): map@25 0.4121 ± 0.0030`."""
    value, deviation = (format_cell(data.metric, drop_nonfinite(n), False) for n in (winner.value, winner.deviation))
    if deviation == NOTHING:
        spread = ""
    else:
        spread = f" ± {deviation}"
    return f"{format_label(data, winner).capitalize()}: {data.metric} {value}{spread}"


def group_failures(data: SweepReport) -> dict[str, str]:
    """Return reason of a failure -> the trials with it: `Trials 3, 5`."""
    reasons: dict[str, list[int]] = {}
    for trial in data.trials:
        if trial.status == "failed":
            reasons.setdefault(trial.reason.strip() or "no message", []).append(trial.number)
    found: dict[str, str] = {}
    for r, given in reasons.items():
        found[r] = f"Trial{'s' if len(given) > 1 else ''} {', '.join(map(str, given))}"
    return found


def format_label(data: SweepReport, trial: TrialReport) -> str:
    roles = (("winner", data.winner), ("defaults", data.default))
    marks = [*(role for role, which in roles if which == trial.number), *filter(None, [trial.note])]
    return f"trial {trial.number}" + "".join(f" ({mark})" for mark in marks)


def rank_trials(data: SweepReport) -> list[TrialReport]:
    """Sort trials by status (finished first), then by metric, the best first."""

    def rank(trial: TrialReport) -> tuple[int, bool, float, bool, int]:
        value = drop_nonfinite(trial.value)
        if data.maximize:
            sign = -1
        else:
            sign = 1
        place = _STATUSES.index(trial.status)
        return place, value is None, sign * (value or 0.0), trial.number != data.winner, trial.number

    return sorted(data.trials, key=rank)


def collect_importance(data: SweepReport) -> dict[str, float]:
    short = shorten_names(data)
    known = {}
    for name, share in data.importance.items():
        known[short.get(name, name)] = share
    return dict(sorted(known.items(), key=lambda pair: -pair[1]))


def shorten_names(data: SweepReport) -> dict[str, str]:
    """Return setting -> its shortest unique ending: `finetune_embedder.learning_rate` -> `learning_rate`."""
    names = list(dict.fromkeys([*data.space, *(name for t in data.trials for name in t.settings)]))
    taken = {"", data.metric, "±", "status", "time"}
    endings = {name: [name[m.end() :] for m in re.finditer(r"[./]", name)][::-1] for name in names}
    short = {}
    for name in names:
        others = set()
        for other in names:
            if other != name:
                for ending in (other, *endings[other]):
                    others.add(ending)
        short[name] = next((e for e in endings[name] if e not in others | taken), name)
        if short[name] in taken:
            short[name] = f"{name} (setting)"
    return short


def collect_settings(data: SweepReport) -> dict[str, dict[int, Value]]:
    """Return short name -> trial number -> value of the settings that vary (all if none does), parsed if numeric."""
    short = shorten_names(data)
    given = {}
    for name in short:
        given[name] = {t.number: t.settings.get(name) for t in data.trials}
    given = {name: texts for name, texts in given.items() if any(text is not None for text in texts.values())}
    varied = {}
    for name, texts in given.items():
        if len(set(texts.values())) > 1:
            varied[name] = texts
    found: dict[str, dict[int, Value]] = {}
    for name, texts in (varied or given).items():
        found[short[name]] = _parse_numbers(texts)
    return found


def format_cell(column: str, value: Value, setting: bool) -> str:
    if value is None:
        if setting:
            return DEFAULT
        return NOTHING
    if not is_number(value):
        return clean(str(value))
    if setting:
        whole = f"{value:.12g}"  # a value of a grid in full; a value drawn from a range has too many digits
        if isinstance(value, int):
            return str(value)
        if len(whole) <= 7:
            return whole
        return f"{value:.3g}"
    if column == "time":
        if value:
            return format_duration(float(value))
        return NOTHING
    # More decimals than elsewhere: the best trials of a sweep lie close together.
    if 1e-3 <= abs(float(value)) < 10 or not value:
        return f"{value:.4f}"
    return format_number(float(value))


def drop_nonfinite(value: float | None) -> float | None:
    """Return the number, or None if it is NaN, infinite, or too large for a chart."""
    if value is not None and math.isfinite(value) and abs(value) < 1e300:
        return value
    return None


def _parse_numbers(texts: Mapping[int, str | None]) -> dict[int, Value]:
    known = []
    for text in texts.values():
        if text is not None:
            known.append(text.strip())
    if not all(_NUMBER.fullmatch(text) and drop_nonfinite(float(text)) is not None for text in known):
        return dict(texts)
    whole = all(re.fullmatch(r"[-+]?\d{1,15}", text) for text in known)
    found: dict[int, Value] = {}
    for i, text in texts.items():
        if text is None:
            found[i] = None
        else:
            if whole:
                found[i] = int(text)
            else:
                found[i] = float(text)
    return found


def build_trials(data: SweepReport) -> Table:
    """Build the table of the trials: settings that vary, the metric, status and seconds.

    The best trial comes first; stopped, failed and unfinished trials follow, and are never the best. A setting is None
    if the trial leaves it to the recipe.
    """
    settings = collect_settings(data)
    trials = rank_trials(data)
    several = any(drop_nonfinite(t.deviation) is not None for t in trials)
    rows: list[dict[str, Any]] = []
    for t in trials:
        rows.append(
            {"": format_label(data, t)}
            | {column: given[t.number] for column, given in settings.items()}
            | {data.metric: drop_nonfinite(t.value)}
            | ({"±": drop_nonfinite(t.deviation)} if several else {})
            | {"status": t.status, "time": t.seconds}
        )
    columns = []
    for column in collect_columns(rows):
        if column:
            columns.append(column)
    styles = {}
    for i, t in enumerate(trials):
        if t.status != "finished":
            styles[i] = "quiet"
    return build_table(
        rows,
        styles | {i: "chosen" for i, t in enumerate(trials) if t.number == data.winner},
        texts={column: [format_cell(column, row[column], column in settings) for row in rows] for column in columns},
        directions={data.metric: 1 if data.maximize else -1},
        contenders=range(len(trials) - len(styles)),
    )


def format_trials(data: SweepReport) -> dict[str, dict[str, str]]:
    """Format the trials: label (`trial 3 (winner)`) -> column -> text (`0.0002`, `0.4121`, `2 m 05 s`)."""
    columns = build_trials(data).columns
    if columns:
        labels = columns[0].texts
    else:
        labels = ()
    found: dict[str, dict[str, str]] = {}
    for i, label in enumerate(labels):
        found[label] = {c.name: c.texts[i] for c in columns[1:]}
    return found


def build_seeds(data: SweepReport) -> Table:
    """Build the table of the metric of every seed; empty with one seed per trial."""
    names = []
    for i in range(max((len(t.values) for t in data.trials), default=0)):
        names.append(f"seed {i + 1}")
    if len(names) > 1:
        trials = rank_trials(data)
    else:
        trials = []
    values = []
    for t in trials:
        values.append(dict(zip(names, map(drop_nonfinite, t.values), strict=False)))
    texts = {}
    for name in names:
        texts[name] = [format_cell(data.metric, row.get(name), False) for row in values]
    rows = []
    for t, row in zip(trials, values, strict=True):
        rows.append({"": format_label(data, t), **dict.fromkeys(names), **row})
    return build_table(rows, {}, texts, directions={})


def collect_curves(data: SweepReport) -> Chart:
    """Return the curves of the trials. The winner and the defaults come first, to get a colour of their own."""
    trials = [t for t in rank_trials(data) if len(t.curve)]
    trials.sort(key=lambda t: (t.number != data.winner, t.number != data.default))
    curves = [(format_label(data, t), range(1, len(t.curve) + 1), t.curve, t.number == data.winner) for t in trials]
    return Chart("", "checkpoint", data.metric, [Series(*curve) for curve in curves])
