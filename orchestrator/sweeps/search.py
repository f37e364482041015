"""The driver of a sweep: runs the trials in Ray Tune.

Tune selects and stops trials; its own checkpoints are not used. A sweep that is given again runs all trials:
their finished steps cost nothing, and a training continues at its last checkpoint.
"""

import argparse
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from ratchet.errors import InputError
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.execution.live_view import LiveView
from ratchet.orchestrator.job_interface.placement import count_fitting
from ratchet.orchestrator.reporting.sweep_data import Trial
from ratchet.orchestrator.step import Step
from ratchet.orchestrator.sweeps.space import compute_key
from ratchet.orchestrator.sweeps.trial import TrialActor, TrialSpec

POLL_INTERVAL = 0.5
"""Seconds between polls of the trials' progress."""

MAX_LOST = 2
"""How often a trial whose process was lost is begun again. Its finished steps cost nothing. An error in the run itself
is a result of the trial."""

TRIAL_RESOURCES = {"node:__internal_head__": 0.001}
"""Resources of a trial's actor, which runs on the head node and reserves no CPU."""

TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
"""Environment variables that turn off Tune's logs, output and change of the working directory."""


def choose_gpus_per_trial(cluster: Cluster, trials: int, given: int | None) -> int | None:
    """Return the number of GPUs of each trial: by default an equal part of the cluster's at its largest, so that as
    many trials as possible run side by side. None: the cluster has none. Raises InputError if `given` cannot be."""
    gpus = int(cluster.maximum().gpus)
    if given and given > gpus:
        raise InputError(
            f"--gpus-per-trial: {given} given; expected at most the {gpus} GPUs of the cluster; lower it"
        )
    if not gpus:
        return None
    return given or max(1, gpus // trials)


def compute_max_concurrent(steps: Sequence[Step], cluster: Cluster) -> int:
    """Return how many trials fit at the same time on the cluster at its largest. Where there are GPUs, the steps that
    use them decide. steps: those of a trial, with its part of the GPUs.

    Raises InputError, with the numbers, if not even one trial fits.
    """
    machines = cluster.machines()
    with_gpus: list[int] = []
    without: list[int] = []
    for step in steps:
        asked = cluster.place(step)
        fits = count_fitting(machines, asked) // (asked.workers or 1)
        if asked.gpus:
            with_gpus.append(fits)
        else:
            without.append(fits)
    return max(1, min(with_gpus or without))


class Search(tune.Callback):
    """The driver of the trials. As a callback of Tune, it records the trials and updates the live view."""

    def __init__(
        self, spec: TrialSpec, options: argparse.Namespace, max_concurrent: int, view: LiveView
    ) -> None:
        """options: the command's options for selecting and stopping trials."""
        self.spec = spec
        self.objective = spec.sweep.objective
        self.options = options
        self.max_concurrent = max_concurrent
        self.view = view
        self.mode = "max" if self.objective.maximize else "min"
        self.trials: dict[str, Trial] = {}
        """Key -> trial, in the order in which they were started."""
        self.ended = 0
        self.started: dict[str, float] = {}
        self.curves: dict[str, list[float]] = {}
        self.last_poll = 0.0

    def __reduce__(self) -> Any:
        return tune.Callback, ()  # Tune pickles its state; it is never read

    def run(self) -> None:
        """Run the trials of the specification. `ended` is smaller than their number afterwards if the sweep was
        interrupted."""
        for name, value in TUNE_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        scheduler = None
        if self.options.stopping == "asha" and self.objective.trained:
            scheduler = ASHAScheduler(
                time_attr="checkpoint",
                max_t=1 << 20,
                grace_period=self.options.grace_period,
                reduction_factor=self.options.reduction_factor,
            )
        folder = self.spec.sweep.run_log.folder / "tune"
        tuner = tune.Tuner(
            tune.with_resources(
                tune.with_parameters(TrialActor, spec=self.spec),
                tune.PlacementGroupFactory([TRIAL_RESOURCES]),
            ),
            param_space={"number": tune.grid_search(list(range(len(self.spec.points))))},
            tune_config=tune.TuneConfig(
                metric="value",
                mode=self.mode,
                scheduler=scheduler,
                max_concurrent_trials=self.max_concurrent,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name=f"{time.time_ns()}",
                storage_path=str(folder),
                verbose=0,
                callbacks=[self],
                failure_config=tune.FailureConfig(max_failures=MAX_LOST),
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        try:
            tuner.fit()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        key = self._record(trial)
        self.started[key] = time.monotonic()
        self.curves[key] = []  # of a trial that begins again, the earlier values do not count
        self._show("started", key, attempt=1)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: Mapping[str, Any], **info: Any
    ) -> None:
        if (
            "value" in result and "ended" not in result
        ):  # the value of a checkpoint, not of the trial
            self.curves[compute_key(self.spec.get_settings(trial.config))].append(result["value"])

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        last = trial.last_result or {}
        curve = self.curves[compute_key(self.spec.get_settings(trial.config))]
        if last.get("failed"):
            self._end(trial, status="failed", reason=last["failed"], curve=curve)
        elif last.get("ended"):
            self._end(
                trial,
                status="finished",
                **{name: last[name] for name in ("value", "values", "curve", "note")},
            )
        else:
            self._end(trial, status="stopped", value=curve[-1] if curve else None, curve=curve)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Called if the trial's process is lost or does not start; `TrialRun` reports the errors of the run itself."""
        said = (trial.get_error() or "").strip().splitlines()
        reason = "its process was lost"
        if said:
            reason += f": {said[-1]}"
        self._end(trial, status="failed", reason=reason)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if time.monotonic() - self.last_poll < POLL_INTERVAL:
            return
        self.last_poll = time.monotonic()
        for key, progress in ray.get(self.spec.progress_actor.take.remote()).items():
            if key in self.trials:
                self.view.progress(self._format_trial(key), progress)

    def _end(self, trial: Any, **found: Any) -> None:
        self.ended += 1
        key = compute_key(self.spec.get_settings(trial.config))
        seconds = 0.0
        if key in self.started:  # else its process could not be started
            seconds = time.monotonic() - self.started[key]
        self._record(trial, seconds=seconds, **found)
        result = self.trials[key]
        if result.status == "failed":
            self._show("failed", key, reason=result.reason)
            return
        metric = self.objective.metric
        if result.status == "stopped":
            metric = f"stopped early at {metric}"
        shown = {} if result.value is None else {metric: result.value}
        self._show("done", key, seconds=seconds, metrics=shown)

    def _show(self, kind: str, key: str, **details: Any) -> None:
        self.view.show({"event": kind, "step": self._format_trial(key), **details})

    def _record(self, trial: Any, **found: Any) -> str:
        """Record what is known of a trial, and return its key."""
        settings = self.spec.get_settings(trial.config)
        key = compute_key(settings)
        self.trials[key] = Trial(settings, **found)
        known = [asdict(one) for one in self.trials.values()]
        self.spec.sweep.run_log.write("trials.json", {"trials": known})
        return key

    def _format_trial(self, key: str) -> str:
        """Format a trial: `trial 3 (learning_rate=0.0002, lora_r=8)`."""
        settings = self.trials[key].settings
        short = ", ".join(f"{name.rpartition('.')[2]}={value}" for name, value in settings.items())
        return f"trial {list(self.trials).index(key) + 1} ({short or 'defaults'})"
