"""The driver of a sweep: runs the trials in Ray Tune.

Tune selects and stops trials; its own checkpoints are not used. When a sweep continues, every trial in the trial log is
given to Tune again and replays its reports, so that the new searcher and scheduler get the whole history.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from ratchet.orchestrator.cli.live_view import LiveView
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.job_interface.placement import count_fitting
from ratchet.orchestrator.step import Step
from ratchet.orchestrator.sweeps.space import Point
from ratchet.orchestrator.sweeps.trial import TrialActor, TrialSpec
from ratchet.orchestrator.sweeps.trial_log import Trial, compute_key

POLL_INTERVAL = 0.5
"""Seconds between polls of the trials' progress."""

TRIAL_RESOURCES = {"node:__internal_head__": 0.001}
"""Resources of a trial's actor, which runs on the head node and reserves no CPU."""

TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
"""Environment variables that turn off Tune's logs, output and change of the working directory."""


def compute_max_concurrent(steps: Sequence[Step], cluster: Cluster) -> int:
    """Return how many trials fit at the same time on the cluster at its largest.

    Raises InputError, with the numbers, if not even one trial fits.
    """
    machines = cluster.machines()
    asked = [cluster.place(step) for step in steps]
    return max(1, min((count_fitting(machines, one) // (one.workers or 1) for one in asked), default=1))


class Search:
    """Driver of the trials of a sweep that have no result yet."""

    def __init__(self, spec: TrialSpec, options: argparse.Namespace, max_concurrent: int, view: LiveView) -> None:
        """options: the command's options for selecting and stopping trials."""
        self.spec = spec
        self.sweep = spec.sweep
        self.options = options
        self.max_concurrent = max_concurrent
        self.view = view
        if spec.sweep.objective.maximize:
            self.mode = "max"
        else:
            self.mode = "min"

    def run(self) -> bool:
        """Run the trials, and return whether all ended. False: the sweep was interrupted."""
        for name, value in TUNE_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        trials = self.options.trials
        if self.options.searcher == "random":
            return self._run_tune(self.sweep.space.draw_points(trials, self.options.seed))
        # The defaults may lie outside the space, so they are not given to Optuna.
        if not self._run_tune([{}]):
            return False
        return trials == 1 or self._run_tune([], self._make_optuna_search(), trials - 1)

    def _run_tune(self, points: Sequence[Point], searcher: Any = None, drawn: int = 0) -> bool:
        """Run a trial for each point, or `drawn` trials of a searcher, and return whether all ended."""
        spec = replace(self.spec, points=tuple(points))
        callback = TrialCallback(spec, self.view)
        trainable = tune.with_parameters(TrialActor, spec=spec)
        asha = ASHAScheduler(
            time_attr="checkpoint",
            max_t=1 << 20,
            grace_period=self.options.grace_period,
            reduction_factor=self.options.reduction_factor,
        )
        folder = self.sweep.trial_log.folder / "tune"
        tuner = tune.Tuner(
            tune.with_resources(trainable, tune.PlacementGroupFactory([TRIAL_RESOURCES])),
            param_space={} if searcher else {"number": tune.grid_search(list(range(len(points))))},
            tune_config=tune.TuneConfig(
                metric="value",
                mode=self.mode,
                search_alg=searcher,
                scheduler=asha if self.options.stopping == "asha" and self.sweep.objective.trained else None,
                num_samples=drawn if searcher else 1,
                max_concurrent_trials=self.max_concurrent,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name=f"{time.time_ns()}",
                storage_path=str(folder),
                verbose=0,
                callbacks=[callback],
                failure_config=tune.FailureConfig(max_failures=0),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        try:
            tuner.fit()
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return callback.ended >= (drawn or len(points))

    def _make_optuna_search(self) -> Any:
        """Create Optuna's TPE searcher (Bergstra et al. 2011). It replays the trials in the trial log first."""
        from ray.tune.search.optuna import OptunaSearch

        dimensions = self.sweep.space.dimensions
        before = []
        for trial in self.sweep.trial_log.trials.values():
            if trial.settings:
                before.append({str(i): d.to_optuna(trial.settings[d.name]) for i, d in enumerate(dimensions)})
        return OptunaSearch(
            {str(i): dimension.to_optuna_distribution() for i, dimension in enumerate(dimensions)},
            metric="value",
            mode=self.mode,
            points_to_evaluate=before or None,
            seed=self.options.seed + len(before),  # with an equal seed, it would draw equal points again
        )


class TrialCallback(tune.Callback):
    """Tune callback that updates the trial log and the live view."""

    def __init__(self, spec: TrialSpec, view: LiveView) -> None:
        self.spec = spec
        self.trial_log = spec.sweep.trial_log
        self.view = view
        self.ended = 0
        self.started: dict[str, float] = {}
        self.curves: dict[str, list[float]] = {}
        self.last_poll = 0.0

    def __reduce__(self) -> Any:
        return tune.Callback, ()  # Tune pickles its state; it is never read

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        settings = self.spec.get_settings(trial.config)
        self.started[trial.trial_id] = time.monotonic()
        self.curves[trial.trial_id] = []
        self.trial_log.record_start(settings)
        if compute_key(settings) in self.spec.known:
            self.view.hit(self._format_trial(settings))
        else:
            self.view.started(self._format_trial(settings), 1)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: Mapping[str, Any], **info: Any
    ) -> None:
        if "value" in result and "ended" not in result:  # the value of a checkpoint, not of the trial
            self.curves[trial.trial_id].append(result["value"])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        last = trial.last_result or {}
        curve = self.curves[trial.trial_id]
        if last.get("failed"):
            self._end(trial, status="failed", reason=last["failed"], curve=tuple(curve))
        elif last.get("ended"):
            found = {"value": last["value"], "values": tuple(last["values"]), "curve": tuple(last["curve"])}
            self._end(trial, status=last["ended"], **found)
        else:
            self._end(trial, status="stopped", value=curve[-1] if curve else None, curve=tuple(curve))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._end(trial, status="failed", reason=f"{trial.get_error() or 'the process was lost'}".strip())

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() - self.last_poll < POLL_INTERVAL:
            return
        self.last_poll = time.monotonic()
        for key, progress in ray.get(self.spec.progress_actor.take.remote()).items():
            if key in self.trial_log.trials:
                self.view.progress(self._format_trial(self.trial_log.trials[key].settings), progress)

    def _end(self, trial: Any, **found: Any) -> None:
        settings = self.spec.get_settings(trial.config)
        self.ended += 1
        if compute_key(settings) in self.spec.known:
            return  # the first result counts, even if the trial would be stopped now
        seconds = time.monotonic() - self.started.get(trial.trial_id, time.monotonic())
        result = Trial(settings, seconds=seconds, **found)
        self.trial_log.record_end(result)
        if result.status == "failed":
            self.view.failed(self._format_trial(settings), result.reason)
        else:
            word = f"{'' if result.status == 'finished' else 'stopped early at '}{self.spec.sweep.objective.metric}"
            if result.value is None:
                values = {}
            else:
                values = {word: result.value}
            self.view.finished(self._format_trial(settings), seconds, values)

    def _format_trial(self, settings: Mapping[str, str]) -> str:
        """Format a trial: `trial 3 (learning_rate=0.0002, lora_r=8)`."""
        short = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in settings.items())
        return f"trial {self.trial_log.get_number(settings)} ({short or 'defaults'})"
