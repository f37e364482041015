"""What the report of a sweep shows, worked out from plain data and without any markup: which trial is better, what a
setting is called and how its value reads, the facts of the first line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.show import NOTHING, clean, duration, is_number, moment, number, plural

DEFAULT = "default"
"""Stands for the value of a setting that a trial leaves to the recipe."""
_STATUSES = ("finished", "stopped", "failed", "unfinished")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class TrialReport:
    """One trial as the report shows it."""

    number: int
    """1, 2, ... in the order in which they were asked for."""
    settings: Mapping[str, str]
    """What the space chose: `finetune_embedder.learning_rate` -> `0.0002`, as after `--set NAME=`. Empty for the
    recipe's defaults."""
    status: Literal["finished", "stopped", "failed", "unfinished"]
    """`stopped`: ended early as a bad one."""
    value: float | None
    """Of the metric; mean over seeds."""
    deviation: float | None = None
    """Standard deviation over seeds; None with one seed."""
    values: Sequence[float] = ()
    """Per seed."""
    curve: Sequence[float] = ()
    """The held-out metric at checkpoint 1, 2, ..."""
    spent: float = 0.0
    """Seconds of steps that this trial computed."""
    shared: float = 0.0
    """Seconds of steps that others had computed already and that it used."""
    reason: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class SweepReport:
    """All that the report of a sweep says."""

    recipe: str
    sweep_id: str
    metric: str
    """As given: `map@25`."""
    maximize: bool
    started: float
    """Seconds since 1970."""
    seconds: float
    """Wall-clock seconds of the whole sweep."""
    command: str
    """Runs the sweep again, or goes on with it."""
    space: Mapping[str, str]
    """Name -> as written: `loguniform(1e-5, 1e-3)`."""
    fixed: Sequence[str]
    """`--set` lines that all trials have."""
    trials: Sequence[TrialReport]
    winner: int | None
    """A trial's number."""
    default: int | None
    """The trial of the recipe's defaults."""
    verdict: str
    """One sentence on whether the winner is better than the defaults beyond noise."""
    winner_command: str
    """Runs the winner."""
    importance: Mapping[str, float]
    """Name -> share of the metric's variance; they sum to 1. May be empty."""
    steps_done: int
    """Steps that were computed."""
    steps_separate: int
    """Steps that as many separate runs would have computed."""
    seconds_separate: float
    """Seconds that those would have taken, by the measured times of the steps."""
    seconds_spent: float
    """Seconds of steps computed."""
    notes: Sequence[str] = ()
    """Things to know, such as why epochs do not continue."""
    provenance: Mapping[str, str] = field(default_factory=dict)


def facts(data: SweepReport) -> list[str]:
    """When, how long, how many trials, and what sharing saved."""
    counts = {status: sum(t.status == status for t in data.trials) for status in _STATUSES}
    words = [f"{plural(n, 'trial')} {status}" for status, n in counts.items() if n]
    told = [moment(data.started), duration(data.seconds), *(words or ["no trials"])]
    if data.steps_done or data.steps_separate:
        work = f"{plural(len(data.trials), 'trial')} did {plural(data.steps_done, 'step')}"
        if data.steps_separate > data.steps_done:
            work += f"; {plural(len(data.trials), 'separate run')} would do {data.steps_separate:,}"
        told.append(work)
    saved = data.seconds_separate - data.seconds_spent
    if saved >= 1:
        told.append(f"{duration(saved)} of {duration(data.seconds_separate)} saved by sharing")
    return told


def state(data: SweepReport) -> str:
    statuses = {t.status for t in data.trials}
    if "unfinished" in statuses or not statuses:
        return "unfinished"
    return "failed" if statuses == {"failed"} else "finished"


def headline(data: SweepReport, winner: TrialReport) -> str:
    """`Trial 3 (winner): map@25 0.4121 ± 0.0030`."""
    label = label_of(data, winner)
    return f"{label[0].upper()}{label[1:]}: {measured(data, winner)}"


def measured(data: SweepReport, trial: TrialReport) -> str:
    deviation = finite(trial.deviation)
    spread = f" ± {cell('±', deviation, False)}" if deviation is not None else ""
    return f"{data.metric} {cell(data.metric, finite(trial.value), False)}{spread}"


def failures(data: SweepReport) -> dict[str, list[int]]:
    """Reason -> numbers of the trials that failed for it."""
    reasons: dict[str, list[int]] = {}
    for trial in data.trials:
        if trial.status == "failed":
            reasons.setdefault(trial.reason.strip() or "no message", []).append(trial.number)
    return reasons


def label_of(data: SweepReport, trial: TrialReport) -> str:
    roles = (("winner", data.winner), ("defaults", data.default))
    return f"trial {trial.number}" + "".join(f" ({role})" for role, which in roles if which == trial.number)


def ranked(data: SweepReport) -> list[TrialReport]:
    """By status, then the best first."""

    def key(trial: TrialReport) -> tuple[int, bool, float, bool, int]:
        value = finite(trial.value)
        signed = 0.0 if value is None else (-value if data.maximize else value)
        place = _STATUSES.index(trial.status)
        return place, value is None, signed, trial.number != data.winner, trial.number

    return sorted(data.trials, key=key)


def shares(data: SweepReport) -> dict[str, float]:
    short = short_names(data)
    known = {short.get(name, name): share for name, share in data.importance.items() if math.isfinite(share)}
    return dict(sorted(known.items(), key=lambda pair: -pair[1]))


def short_names(data: SweepReport) -> dict[str, str]:
    """Names of the space -> what tells them apart: `finetune_embedder.learning_rate` -> `learning_rate`."""
    names = list(dict.fromkeys([*data.space, *(name for t in data.trials for name in t.settings)]))
    taken = {"", data.metric, "±", "status", "spent", "shared"}
    endings = {name: [name[m.end() :] for m in re.finditer(r"[./]", name)][::-1] for name in names}
    short = {}
    for name in names:
        others = {ending for other in names if other != name for ending in (other, *endings[other])}
        short[name] = next((e for e in endings[name] if e not in others | taken), name)
        if short[name] in taken:
            short[name] = f"{name} (setting)"
    return short


def settings_of(data: SweepReport) -> dict[str, dict[int, float | str | None]]:
    """Short name -> trial -> value, of the settings that vary; of all, if none does. Numbers if all are numbers."""
    short = short_names(data)
    given = {name: {t.number: t.settings.get(name) for t in data.trials} for name in short}
    given = {name: texts for name, texts in given.items() if any(text is not None for text in texts.values())}
    varied = {name: texts for name, texts in given.items() if len(set(texts.values())) > 1}
    return {short[name]: _parsed(texts) for name, texts in (varied or given).items()}


def cell(column: str, value: float | str | None, setting: bool) -> str:
    if value is None:
        return DEFAULT if setting else NOTHING
    if not is_number(value):
        return clean(str(value))
    if setting:
        whole = f"{value:.12g}"  # as it was chosen from a grid; what a range gave has more digits than help
        return str(value) if isinstance(value, int) else whole if len(whole) <= 7 else f"{value:.3g}"
    if column in ("spent", "shared"):
        return duration(float(value)) if value else NOTHING
    # More decimals than elsewhere: the good ones of a sweep lie close together.
    return f"{value:.4f}" if 1e-3 <= abs(float(value)) < 10 or not value else number(float(value))


def finite(value: float | None) -> float | None:
    """The number, or None where it says nothing (NaN, infinite) or cannot be drawn."""
    return value if value is not None and math.isfinite(value) and abs(value) < 1e300 else None


def _parsed(texts: Mapping[int, str | None]) -> dict[int, float | str | None]:
    known = [text.strip() for text in texts.values() if text is not None]
    if not all(NUMBER.fullmatch(text) and finite(float(text)) is not None for text in known):
        return dict(texts)
    whole = all(re.fullmatch(r"[-+]?\d{1,15}", text) for text in known)
    return {i: None if text is None else int(text) if whole else float(text) for i, text in texts.items()}
