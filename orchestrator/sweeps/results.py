"""Results of a sweep: the winner, its comparison with the defaults, and the report."""

from __future__ import annotations

import math
import shlex
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ratchet.orchestrator.atomic_file import write_atomically
from ratchet.orchestrator.execution.executor import versions
from ratchet.orchestrator.promotion import promote
from ratchet.orchestrator.reporting.formatting import Estimate
from ratchet.orchestrator.reporting.sweep_data import SweepReport, TrialReport
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.sweeps.plan import SweepPlan
from ratchet.orchestrator.sweeps.space import format_settings
from ratchet.orchestrator.sweeps.trial_log import Trial

MIN_TRIALS = 4
"""Minimum number of finished trials to compute importances."""


def build_sweep_report(sweep: SweepPlan, store: Store, command: str) -> SweepReport:
    """Build the report from the trial log, the run logs of the trials, and the store."""
    trial_log = sweep.trial_log
    objective = sweep.objective
    trials = []
    for number, trial in enumerate(trial_log.trials.values(), 1):
        found: dict[str, Any] = {**vars(trial), "settings": trial.settings or sweep.defaults, "number": number}
        if trial.values:
            deviation = Estimate.of_mean(trial.values).deviation
        else:
            deviation = None
        trials.append(TrialReport(**found, deviation=deviation, note=read_note(sweep, trial, store)))
    best = find_winner(list(trial_log.trials.values()), objective.maximize)
    if best is None:
        note = ""
    else:
        note = read_note(sweep, best, store)
    default = next((trial for trial in trial_log.trials.values() if not trial.settings), None)
    return SweepReport(
        recipe=sweep.recipe.name,
        sweep_id=trial_log.id,
        metric=objective.metric,
        maximize=objective.maximize,
        started=trial_log.started,
        seconds=time.time() - trial_log.started,
        command=command,
        space={dimension.name: dimension.written for dimension in sweep.space.dimensions},
        fixed=sweep.lines,
        trials=trials,
        winner=None if best is None else trial_log.get_number(best.settings),
        default=None if default is None else trial_log.get_number(default.settings),
        conclusion=compare_with_defaults(best, default, objective.metric) + (f"; the winner {note}" if note else ""),
        winner_command="" if best is None else shlex.join(_build_command(sweep, best)),
        importance=compute_importance(sweep, list(trial_log.trials.values())),
        notes=(f"objective: {objective.name} of {objective.step}", *sweep.notes),
        provenance=versions(),
    )


def find_winner(trials: Sequence[Trial], maximize: bool) -> Trial | None:
    """Return the best finished trial, and the first one of equal trials, so that the defaults win ties."""
    finished = [trial for trial in trials if trial.status == "finished" and trial.value is not None]
    if maximize:
        sign = 1
    else:
        sign = -1
    return max(finished, key=lambda trial: sign * (trial.value or 0.0), default=None)


def compare_with_defaults(best: Trial | None, default: Trial | None, metric: str) -> str:
    """Return a sentence on whether the winner beats the defaults by over two standard errors of the difference (Welch
    1947). The winner is the maximum of many trials, so this test slightly favours it.
    """
    if best is None or best.value is None:
        return "no trial finished"
    if default is None or default.value is None or default.status != "finished":
        return (
            f"the best {metric} is {best.value:.4f}; the defaults did not finish, so there is nothing to compare with"
        )
    if best.key == default.key:
        return f"nothing was better than the recipe's defaults ({metric} {best.value:.4f})"
    gain = abs(best.value - default.value)
    sentence = f"{metric} {best.value:.4f} against {default.value:.4f} with the recipe's defaults"
    if len(best.values) < 2 or len(default.values) < 2:
        return f"{sentence}; one seed per trial cannot show whether this is noise; use --seeds 3"
    error = math.sqrt(sum(statistics.variance(trial.values) / len(trial.values) for trial in (best, default)))
    if gain <= 2 * error:
        found = "within noise"
    else:
        found = "more than noise"
    return f"{sentence}: {found} (a difference of {gain:.4f}, two standard errors are {2 * error:.4f})"


def read_note(sweep: SweepPlan, trial: Trial, store: Store) -> str:
    """Return the note of the deciding step of a finished trial, such as that it kept its base; empty without one."""
    notes: dict[str, None] = {}
    if trial.status == "finished":
        for run_log in sweep.trial_log.list_runs(trial):
            ids = (step["step_id"] for step in run_log.steps() if step["name"] == sweep.objective.step)
            commits = []
            for step_id in ids:
                if step_id:
                    commits.append(store.lookup(step_id))
            notes |= dict.fromkeys(store.manifest(c.manifest).result.get("note", "") for c in commits if c is not None)
    return "; ".join(filter(None, notes))


def compute_importance(sweep: SweepPlan, trials: Sequence[Trial]) -> dict[str, float]:
    """Return each setting's share of the metric's variance, by Optuna's PED-ANOVA (Watanabe et al. 2023).

    Empty if there are too few trials.
    """
    finished = []
    for t in trials:
        if t.status == "finished" and t.settings and t.value is not None:
            finished.append(t)
    if len(finished) < MIN_TRIALS or len({trial.value for trial in finished}) < 2:
        return {}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize" if sweep.objective.maximize else "minimize")
    spread = {}
    for d in sweep.space.dimensions:
        spread[d.name] = d.to_optuna_distribution()
    for trial in finished:
        values = {}
        for d in sweep.space.dimensions:
            values[d.name] = d.to_optuna(trial.settings[d.name])
        study.add_trial(optuna.trial.create_trial(params=values, distributions=spread, value=trial.value))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    made: dict[str, float] = {}
    for name, share in found.items():
        if math.isfinite(share):
            made[name] = float(share)
    return made


def write_winner(sweep: SweepPlan, best: Trial) -> Path:
    """Write winner.yaml, for `ratchet run RECIPE --settings FILE`, into the sweep's folder; return its path."""
    settings: dict[str, str] = {}
    for line in (*sweep.lines, *format_settings(best.settings)):
        name, _, value = line.partition("=")
        settings.pop(name, None)  # the last of overlapping patterns counts, so it must stay last
        settings[name] = value
    path = sweep.trial_log.folder / "winner.yaml"
    number = sweep.trial_log.get_number(best.settings)
    about = f"# {sweep.objective.metric} {best.value:.6g}, trial {number} of {sweep.trial_log.id}\n"
    write_atomically(path, about + (yaml.safe_dump(settings, sort_keys=False) if settings else "{}\n"))
    return path


def promote_winner(sweep: SweepPlan, best: Trial, store: Store, name: str) -> Path:
    """Promote the output of the winner's deciding step (first seed) as `promoted/NAME`, and return this link."""
    (run_log, *_) = sweep.trial_log.list_runs(best)
    step_id = next(s["step_id"] for s in run_log.steps() if s["name"] == sweep.objective.step)
    commit = store.use(step_id)
    assert commit is not None  # the trial finished
    about: dict[str, Any] = {"sweep": sweep.trial_log.id, "settings": dict(best.settings)}
    about |= {"metric": sweep.objective.metric, "value": best.value, "note": read_note(sweep, best, store)}
    return promote(store, name, commit, sweep.trial_log.id, about)


def _build_command(sweep: SweepPlan, trial: Trial) -> list[str]:
    settings = [*sweep.lines, *format_settings(trial.settings)]
    return ["ratchet", "run", sweep.given, *(part for line in settings for part in ("--set", line))]
