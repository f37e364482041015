"""What a sweep amounts to: its winner, whether that is more than noise, what sharing saved; and its report."""

from __future__ import annotations

import json
import math
import os
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.execute import versions
from orchestrator.journal import Journal
from orchestrator.report.sweep_parts import SweepReport, TrialReport
from orchestrator.store import Store
from orchestrator.sweep.ledger import Trial
from orchestrator.sweep.plan import SweepPlan
from orchestrator.sweep.space import lines

ENOUGH = 4
"""Finished trials from which on it can be asked which settings matter."""


def report(sweep: SweepPlan, store: Store, command: str) -> SweepReport:
    """Everything that is known of the sweep, from its ledger, its trials' journals and the store."""
    ledger, target = sweep.ledger, sweep.target
    costs = {key: _accounts(ledger.runs(trial), store) for key, trial in ledger.trials.items()}
    trials = [_trial(sweep, costs[key], number, ledger.trials[key]) for number, key in enumerate(costs, 1)]
    best = winner(list(ledger.trials.values()), target.maximize)
    default = next((trial for trial in ledger.trials.values() if not trial.settings), None)
    accounts = [account for cost in costs.values() for account in cost]
    return SweepReport(
        recipe=sweep.recipe.name,
        sweep_id=ledger.id,
        metric=target.metric,
        maximize=target.maximize,
        started=ledger.started,
        seconds=time.time() - ledger.started,
        command=command,
        space={dimension.name: dimension.written for dimension in sweep.space.dimensions},
        fixed=sweep.lines,
        trials=trials,
        winner=None if best is None else ledger.number(best.settings),
        default=None if default is None else ledger.number(default.settings),
        verdict=verdict(best, default, target.metric),
        winner_command="" if best is None else shlex.join(_command(sweep, best)),
        importance=importance(sweep, list(ledger.trials.values())),
        steps_done=sum(computed for computed, _ in accounts),
        steps_separate=len(accounts),
        seconds_separate=sum(seconds for _, seconds in accounts),
        seconds_spent=sum(seconds for computed, seconds in accounts if computed),
        notes=(f"decided by {target.name} of {target.step}", *sweep.notes),
        provenance=versions(),
    )


def winner(trials: Sequence[Trial], maximize: bool) -> Trial | None:
    """The best of those that ended; the first of equals, so that the defaults stay where nothing is better."""
    finished = [trial for trial in trials if trial.status == "finished" and trial.value is not None]
    sign = 1 if maximize else -1
    return max(finished, key=lambda trial: sign * (trial.value or 0.0), default=None)


def verdict(best: Trial | None, default: Trial | None, metric: str) -> str:
    """Whether the winner beats the defaults by more than the seeds' noise: two standard errors of the difference
    (Welch 1947). The winner was picked for being high, so that even this flatters it a little."""
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
        return f"{sentence}; one seed each does not tell it from noise, --seeds 3 would"
    error = math.sqrt(sum(statistics.variance(trial.values) / len(trial.values) for trial in (best, default)))
    if gain <= 2 * error:
        return f"{sentence}: within noise (a difference of {gain:.4f}, two standard errors are {2 * error:.4f})"
    return f"{sentence}: more than noise (a difference of {gain:.4f}, two standard errors are {2 * error:.4f})"


def importance(sweep: SweepPlan, trials: Sequence[Trial]) -> dict[str, float]:
    """Each setting's share of the metric's variance, by Optuna's PED-ANOVA (Watanabe et al. 2023); empty for few
    trials."""
    finished = [t for t in trials if t.status == "finished" and t.settings and t.value is not None]
    if len(finished) < ENOUGH or len({trial.value for trial in finished}) < 2:
        return {}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="maximize" if sweep.target.maximize else "minimize")
    spread = {d.name: d.distribution() for d in sweep.space.dimensions}
    for trial in finished:
        values = {d.name: d.native(trial.settings[d.name]) for d in sweep.space.dimensions}
        study.add_trial(optuna.trial.create_trial(params=values, distributions=spread, value=trial.value))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items() if math.isfinite(share)}


def keep_winner(sweep: SweepPlan, best: Trial) -> Path:
    """winner.yaml in the sweep's folder: what `ratchet run RECIPE --settings FILE` takes."""
    settings = dict(line.split("=", 1) for line in [*sweep.lines, *lines(best.settings)])
    path = sweep.ledger.folder / "winner.yaml"
    about = (
        f"# {sweep.target.metric} {best.value:.6g}, trial {sweep.ledger.number(best.settings)} of {sweep.ledger.id}\n"
    )
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(about + (yaml.safe_dump(settings, sort_keys=False) if settings else "{}\n"))
    fresh.replace(path)
    return path


def promote(sweep: SweepPlan, best: Trial, store: Store, name: str) -> Path:
    """Gives what the winner's last step made a name: `promoted/NAME` in the store leads to it, and `gc` keeps it."""
    (journal, *_) = sweep.ledger.runs(best)
    step_id = next(s["step_id"] for s in journal.steps() if s["name"] == sweep.target.step)
    commit = store.use(step_id)
    assert commit is not None  # the trial has ended well
    folder = store.local("promoted")
    folder.mkdir(exist_ok=True)
    about = {"step_id": step_id, "object": commit.manifest, "sweep": sweep.ledger.id, "settings": dict(best.settings)}
    fresh = folder / f".{name}.{os.getpid()}"
    fresh.write_text(json.dumps({**about, "metric": sweep.target.metric, "value": best.value}, indent=1))
    fresh.replace(folder / f"{name}.json")
    fresh.symlink_to(Path("..", "objects", commit.manifest))
    fresh.replace(folder / name)
    store.publish(folder)
    return folder / name


def _command(sweep: SweepPlan, trial: Trial) -> list[str]:
    settings = [*sweep.lines, *lines(trial.settings)]
    return ["ratchet", "run", sweep.given, *(part for line in settings for part in ("--set", line))]


def _trial(sweep: SweepPlan, accounts: Sequence[tuple[bool, float]], number: int, trial: Trial) -> TrialReport:
    return TrialReport(
        number=number,
        settings=trial.settings or sweep.defaults,
        status=trial.status,  # type: ignore[arg-type]
        value=trial.value,
        deviation=statistics.stdev(trial.values) if len(trial.values) > 1 else None,
        values=trial.values,
        curve=trial.curve,
        spent=sum(seconds for computed, seconds in accounts if computed),
        shared=sum(seconds for computed, seconds in accounts if not computed),
        reason=trial.reason,
    )


def _accounts(runs: Sequence[Journal], store: Store) -> list[tuple[bool, float]]:
    """(whether it was computed here, seconds) of each step of a trial's runs, as far as they came."""
    found: list[tuple[bool, float]] = []
    for run in runs:
        events = run.events()
        started: Mapping[Any, float] = {event["step"]: event["t"] for event in events if event["event"] == "started"}
        last = events[-1]["t"] if events else 0.0
        for step in run.steps():
            commit = store.lookup(step["step_id"]) if step["step_id"] else None
            if step["status"] == "done" and commit is not None:
                found.append((step["name"] in started, commit.record["seconds"]))
            elif step["name"] in started:
                found.append((True, last - started[step["name"]]))
    return found
