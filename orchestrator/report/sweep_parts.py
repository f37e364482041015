"""What the report of a sweep shows, worked out from plain data and without any markup: which trial is better, what a
setting is called and how its value reads, the facts of the first line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.show import NOTHING, clean, duration, is_number, moment, number, plural

if TYPE_CHECKING:
    from orchestrator.report.sweep import SweepReport, TrialReport

DEFAULT = "default"
"""Stands for the value of a setting that a trial leaves to the recipe."""
_STATUSES = ("finished", "stopped", "failed", "unfinished")
NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


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
