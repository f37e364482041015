"""Results of a sweep: the winner, its comparison with the defaults, and the report."""

from __future__ import annotations

import math
import shlex
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import yaml

from ratchet.orchestrator.atomic_file import write_atomically
from ratchet.orchestrator.execution.executor import versions
from ratchet.orchestrator.reporting.sweep_data import SweepReport, Trial
from ratchet.orchestrator.sweeps.plan import SweepPlan
from ratchet.orchestrator.sweeps.space import format_settings


def build_sweep_report(sweep: SweepPlan, trials: Sequence[Trial], command: str) -> SweepReport:
    """Build the report of the trials, which are in the order in which they were started."""
    objective = sweep.objective
    best = find_winner(trials, objective.maximize)
    default = next((trial for trial in trials if not trial.settings), None)
    conclusion = compare_with_defaults(best, default, objective.metric)
    if best is not None and best.note:
        conclusion += f"; the winner {best.note}"
    started = (sweep.run_log.read("about.json") or {})["started"]
    return SweepReport(
        recipe=sweep.recipe.name,
        sweep_id=sweep.run_log.run_id,
        metric=objective.metric,
        maximize=objective.maximize,
        started=started,
        seconds=time.time() - started,
        command=command,
        space={dimension.name: dimension.written for dimension in sweep.space.dimensions},
        fixed=sweep.lines,
        trials=trials,
        winner=trials.index(best) + 1 if best else None,
        conclusion=conclusion,
        winner_command=_write_command(sweep, best) if best else "",
        notes=(f"objective: {objective.name} of {objective.step}", *sweep.notes),
        provenance=versions(),
    )


def find_winner(trials: Sequence[Trial], maximize: bool) -> Trial | None:
    """Return the best finished trial, and the first one of equal trials, so that the defaults win ties."""
    finished = [trial for trial in trials if trial.status == "finished"]
    sign = 1 if maximize else -1
    return max(finished, key=lambda trial: sign * (trial.value or 0.0), default=None)


def compare_with_defaults(best: Trial | None, default: Trial | None, metric: str) -> str:
    """Return a sentence on whether the winner beats the defaults by over two standard errors of the difference (Welch
    1947). The winner is the maximum of many trials, so this test slightly favours it.
    """
    if best is None or best.value is None:
        return "no trial finished"
    if default is None or default.value is None or default.status != "finished":
        return (
            f"the best {metric} is {best.value:.4f}; the defaults did not finish, so there is nothing to compare"
            " with"
        )
    if best.settings == default.settings:
        return f"nothing was better than the recipe's defaults ({metric} {best.value:.4f})"
    gain = abs(best.value - default.value)
    sentence = f"{metric} {best.value:.4f} against {default.value:.4f} with the recipe's defaults"
    if len(best.values) < 2 or len(default.values) < 2:
        return f"{sentence}; one seed per trial cannot show whether this is noise; use --seeds 3"
    variances = []
    for trial in (best, default):
        variances.append(statistics.variance(trial.values) / len(trial.values))
    error = math.sqrt(sum(variances))
    found = "within noise" if gain <= 2 * error else "more than noise"
    return (
        f"{sentence}: {found} (a difference of {gain:.4f}, two standard errors are {2 * error:.4f})"
    )


def write_winner(sweep: SweepPlan, best: Trial) -> Path:
    """Write winner.yaml, for `ratchet run RECIPE --settings FILE`, into the sweep's folder; return its path."""
    settings: dict[str, str] = {}
    for line in (*sweep.lines, *format_settings(best.settings)):
        name, _, value = line.partition("=")
        settings.pop(name, None)  # the last of overlapping patterns counts, so it must stay last
        settings[name] = value
    path = sweep.run_log.folder / "winner.yaml"
    about = (
        f"# {sweep.objective.metric} {best.value:.6g}, the best trial of {sweep.run_log.run_id}\n"
    )
    write_atomically(path, about + yaml.safe_dump(settings, sort_keys=False))
    return path


def _write_command(sweep: SweepPlan, trial: Trial) -> str:
    command = ["ratchet", "run", sweep.given]
    for line in (*sweep.lines, *format_settings(trial.settings)):
        command += ["--set", line]
    return shlex.join(command)
