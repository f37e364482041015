"""A trial of a sweep as a Ray Tune Trainable: a run of the recipe up to the deciding step.

The run is the same as in `ratchet run`, in a thread of the trial's actor. `step` reports the objective after each
checkpoint of the deciding step, and finally the value of the trial. The actor reserves no CPUs; only the steps of the
run do. A trial that waits for Tune therefore never blocks the training of another trial.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray import tune

from ratchet.errors import Interrupted, JobError, describe
from ratchet.orchestrator.atomic_file import make_folder
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.execution.run import Run
from ratchet.orchestrator.execution.run_listener import RunListener
from ratchet.orchestrator.job_interface.job import Progress
from ratchet.orchestrator.job_interface.progress import ProgressReporter
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.recipe import Settings, build
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import Step, Summary
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.open_runs import OpenRun
from ratchet.orchestrator.sweeps.objective import select_needed_steps
from ratchet.orchestrator.sweeps.plan import SweepPlan
from ratchet.orchestrator.sweeps.space import Point, format_settings, format_value
from ratchet.orchestrator.sweeps.trial_log import Trial, compute_key

STOP_TIMEOUT = 60.0
"""Seconds to wait for the steps of a trial that is stopped."""


@dataclass(frozen=True)
class TrialSpec:
    """The specification of all trials, which is sent to their processes."""

    sweep: SweepPlan
    working_folder: Path
    """Working directory of the command. Paths in settings are relative to it."""
    seeds: int
    store: str
    known: Mapping[str, Trial]
    """Key -> trial that has ended, which only replays its reports."""
    progress_actor: Any
    """Actor that the driver polls for the progress of trials."""
    points: tuple[Point, ...] = ()
    """Settings by trial number. Empty: a searcher chooses the values."""

    def get_settings(self, config: Mapping[str, Any]) -> Point:
        """Return the settings of the trial with this Tune config."""
        if "number" in config:
            return self.points[int(config["number"])]
        found = {}
        for i, d in enumerate(self.sweep.space.dimensions):
            found[d.name] = format_value(config[str(i)])
        return found

    def build(self, point: Point, seed: int, store: Store) -> list[Step]:
        """Build the steps of a trial for seed number `seed` (0: the recipe's own seed)."""
        sweep = self.sweep
        lines = [*self.sweep.lines, *format_settings(point)]
        steps, _, _ = build(sweep.recipe, Settings.read(lines), store)
        if seed:
            more = []
            for step in steps:
                if step.name in sweep.seeded_steps:
                    more.append(f"{step.name}.seed={step.config.seed + seed}")
            steps, _, _ = build(sweep.recipe, Settings.read([*lines, *more]), store)
        found: list[Step] = []
        for step in select_needed_steps(steps, sweep.objective.step):
            found.append(sweep.finished.get(step.name, step))
        return found


class TrialActor(tune.Trainable):
    """The Ray Tune actor of a trial."""

    def setup(self, config: dict[str, Any], spec: TrialSpec | None = None) -> None:
        if spec is not None:
            self.spec = spec
            os.chdir(spec.working_folder)
        self.thread = TrialThread(self.spec, self.spec.get_settings(config))
        self.thread.start()

    def step(self) -> dict[str, Any]:
        return self.thread.reports.get()

    def cleanup(self) -> None:
        self.thread.stopping.set()
        self.thread.join(STOP_TIMEOUT)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True


class TrialThread(threading.Thread):
    """Thread of one trial. If it ends late, its reports are ignored: the actor's next trial has its own thread."""

    def __init__(self, spec: TrialSpec, settings: Point) -> None:
        super().__init__(name="trial", daemon=True)
        self.spec = spec
        self.settings = settings
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self.stopping = threading.Event()

    def run(self) -> None:
        """Run the trial. The last report is always `done`, even after an error, since `step` waits for it."""
        try:
            end = self._run_or_replay()
        except Interrupted:
            end = {}
        except Exception as error:
            end = {"failed": describe(error)}
        self.reports.put({**end, "done": True})

    def _run_or_replay(self) -> dict[str, Any]:
        """Run the trial, or replay its reports if it has ended before."""
        known = self.spec.known.get(compute_key(self.settings))
        if known is not None:
            for number, value in enumerate(known.curve, 1):
                self.reports.put({"checkpoint": number, "value": value})
            if known.value is None:
                return {}
            return {"checkpoint": max(1, len(known.curve)), "value": known.value}
        values, (curve, *_) = zip(*map(self._run_seed, range(self.spec.seeds)), strict=True)
        end = {"checkpoint": max(1, len(curve)), "value": sum(values) / len(values)}
        return {**end, "ended": "finished", "values": values, "curve": curve}

    def _run_seed(self, seed: int) -> tuple[float, list[float]]:
        """Run one seed and return (value, curve). Only the first seed reports its checkpoints to Tune."""
        spec = self.spec
        sweep = self.spec.sweep
        objective = self.spec.sweep.objective
        store = Store.open(spec.store, create=False)
        steps = spec.build(self.settings, seed, store)
        key = compute_key(self.settings)
        run_log = RunLog(store.local("sweeps", sweep.trial_log.id, "trials", key, f"seed-{seed}"))
        # This name is shown to other drivers that wait for a step of this run.
        run_log.run_id = f"{sweep.trial_log.id} with {', '.join(format_settings(self.settings)) or 'the defaults'}"
        make_folder(run_log.folder)
        listener = TrialListener(self, report_to_tune=seed == 0)
        with OpenRun(store) as open_run, closing(Cluster()) as cluster:
            plan = Plan(steps, store)
            plan.check()
            run = Run(sweep.recipe, Summary(()), plan, cluster, run_log, listener, self.stopping)
            run.write_plan()  # before its folder is named: the folder may hold the plan of an earlier run
            open_run.set_folder(run_log.folder)
            run.execute()
        if run.interrupted:
            raise Interrupted(f"trial {self.settings}: stopped")
        if run.failures:
            raise JobError("; ".join(f"{name}: {reason}" for name, reason in run.failures.items()))
        deciding = plan.steps[objective.step]
        points = objective.read_curve(deciding.result)
        if seed == 0:
            listener.report_checkpoints(points)
        return objective.read_value(deciding.numbers), points


class TrialListener(RunListener):
    """Listener that sends the progress of a trial's run to the driver, and the objective at checkpoints to Tune."""

    def __init__(self, trial: TrialThread, report_to_tune: bool) -> None:
        self.trial = trial
        self.report_to_tune = report_to_tune
        self.reported = 0
        self.send = ProgressReporter(trial.spec.progress_actor, compute_key(trial.settings))

    def progress(self, name: str, progress: Progress) -> None:
        self.send(replace(progress, stage=f"{name} {progress.stage}".rstrip()))
        objective = self.trial.spec.sweep.objective
        if self.report_to_tune and name == objective.step and objective.trained:
            self.report_checkpoints(progress.evaluations)

    def report_checkpoints(self, values: Any) -> None:
        """Report the values that have not been reported yet."""
        for value in values[self.reported :]:
            self.reported += 1
            self.trial.reports.put({"checkpoint": self.reported, "value": value})

    def started(self, name: str, attempt: int) -> None:
        self.send(Progress(0, stage=f"{name} starting"))

    def waiting(self, name: str, on: str) -> None:
        self.send(Progress(0, stage=f"{name} waits for {on}"))

    def retrying(self, name: str, reason: str, delay_s: float) -> None:
        self.send(Progress(0, stage=f"{name} retries: {reason}"))
