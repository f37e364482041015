"""A trial of a sweep as a Ray Tune Trainable: a run of the recipe up to the deciding step.

The run is the same as in `ratchet run`, in a thread of the trial's actor. `step` reports the objective after each
checkpoint of the deciding step, and finally the value of the trial. The actor reserves no CPUs; only the steps of the
run do. A trial that waits for Tune therefore never blocks the training of another trial.
"""

import os
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray import tune

from ratchet.errors import Interrupted, JobError, describe
from ratchet.orchestrator.atomic_file import make_folder
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.execution.run import Run
from ratchet.orchestrator.job_interface.job import Progress
from ratchet.orchestrator.job_interface.settings import write_lines
from ratchet.orchestrator.job_interface.worker import ProgressReporter
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.recipe import Settings, build
from ratchet.orchestrator.run_log import RunListener, RunLog
from ratchet.orchestrator.step import Step, Summary
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import OpenRun
from ratchet.orchestrator.sweeps.plan import SweepPlan, select_needed_steps
from ratchet.orchestrator.sweeps.space import Point, compute_key

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
    progress_actor: Any
    """Actor that the driver polls for the progress of trials."""
    points: tuple[Point, ...]
    """Settings by trial number."""
    gpus: int | None = None
    """Number of GPUs of a trial. None: no limit."""

    def get_settings(self, config: Mapping[str, Any]) -> Point:
        """Return the settings of the trial with this Tune config."""
        return self.points[int(config["number"])]

    def build(self, point: Point, seed: int, store: Store) -> list[Step]:
        """Build the steps of a trial for seed number `seed` (0: the recipe's own seed)."""
        sweep = self.sweep
        lines = [*sweep.lines, *write_lines(point)]
        steps, _, _ = build(sweep.recipe, Settings.read(lines), store)
        if seed:
            for step in steps:
                if step.name in sweep.seeded_steps:
                    lines.append(f"{step.name}.seed={step.config.seed + seed}")
            steps, _, _ = build(sweep.recipe, Settings.read(lines), store)
        needed = select_needed_steps(steps, sweep.objective.step)
        return [limit_workers(sweep.finished.get(step.name, step), self.gpus) for step in needed]


def limit_workers(step: Step, gpus: int | None) -> Step:
    """Return a step with as many workers as a trial has GPUs for, unless the user has set their number."""
    if gpus is None or step.resources.workers is not None or not step.job.uses("workers"):
        return step
    workers = max(1, int(gpus // (step.resources.gpus or 1)))
    return replace(step, resources=replace(step.resources, workers=workers))


class TrialActor(tune.Trainable):
    """The Ray Tune actor of a trial."""

    def setup(self, config: dict[str, Any], spec: TrialSpec | None = None) -> None:
        if spec is not None:
            self.spec = spec
            os.chdir(spec.working_folder)
        self.trial = TrialRun(self.spec, self.spec.get_settings(config))
        self.thread = threading.Thread(target=self.trial.run, name="trial", daemon=True)
        self.thread.start()

    def step(self) -> dict[str, Any]:
        return self.trial.reports.get()

    def cleanup(self) -> None:
        self.trial.stopping.set()
        self.thread.join(STOP_TIMEOUT)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True


class TrialRun(RunListener):
    """The run of one trial. If it ends late, its reports are ignored: the actor's next trial has its own queue. As a
    listener, it sends the progress to the driver, and the objective of the first seed at checkpoints to Tune."""

    def __init__(self, spec: TrialSpec, settings: Point) -> None:
        self.spec = spec
        self.settings = settings
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self.stopping = threading.Event()
        self.reported = 0
        self.is_first_seed = True
        self.send = ProgressReporter(spec.progress_actor, compute_key(settings))

    def run(self) -> None:
        """Run the trial. The last report is always `done`, even after an error, since `step` waits for it."""
        try:
            end = self._run_seeds()
        except Interrupted:
            end = {}
        except Exception as error:
            end = {"failed": describe(error)}
        self.reports.put({**end, "done": True})

    def _run_seeds(self) -> dict[str, Any]:
        values = []
        first: dict[str, Any] = {}
        for seed in range(self.spec.seeds):
            self.is_first_seed = seed == 0
            value, about = self._run_seed(seed)
            values.append(value)
            first = first or about
        return {
            **first,
            "checkpoint": max(1, len(first["curve"])),
            "value": sum(values) / len(values),
            "values": values,
            "ended": True,
        }

    def _run_seed(self, seed: int) -> tuple[float, dict[str, Any]]:
        """Run one seed and return its value, and the curve and the note of the deciding step."""
        spec = self.spec
        sweep = spec.sweep
        store = Store.open(spec.store, create=False)
        steps = spec.build(self.settings, seed, store)
        run_log = RunLog(
            sweep.run_log.folder / "trials" / compute_key(self.settings) / f"seed-{seed}"
        )
        # This name is shown to other drivers that wait for a step of this run.
        run_log.run_id = (
            f"{sweep.run_log.run_id} with {', '.join(write_lines(self.settings)) or 'the defaults'}"
        )
        make_folder(run_log.folder)
        with OpenRun(store) as open_run, closing(Cluster()) as cluster:
            plan = Plan(steps, store)
            plan.check()
            run = Run(sweep.recipe, Summary(()), plan, cluster, run_log, self, self.stopping)
            run.write_plan()  # before its folder is named: the folder may hold the plan of an earlier run
            open_run.set_folder(run_log.folder)
            run.execute()
        if run.interrupted:
            raise Interrupted(f"trial {self.settings}: stopped")
        if run.failures:
            raise JobError("; ".join(f"{name}: {reason}" for name, reason in run.failures.items()))
        deciding = plan.steps[sweep.objective.step]
        curve = sweep.objective.read_curve(deciding.result)
        self.report_checkpoints(curve)
        return sweep.objective.read_value(deciding.numbers), {
            "curve": curve,
            "note": deciding.result.get("note", ""),
        }

    def report_checkpoints(self, values: Sequence[float]) -> None:
        """Report the objective at the checkpoints of the first seed that have not been reported yet."""
        if self.is_first_seed:
            for value in values[self.reported :]:
                self.reported += 1
                self.reports.put({"checkpoint": self.reported, "value": value})

    def progress(self, name: str, progress: Progress) -> None:
        self.send(replace(progress, stage=f"{name} {progress.stage}".rstrip()))
        objective = self.spec.sweep.objective
        if name == objective.step and objective.trained:
            self.report_checkpoints(progress.evaluations)

    def show(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "started":
                stage = "starting"
            case "waiting":
                stage = f"waits for {event['on']}"
            case "retry":
                stage = f"retries: {event['reason']}"
            case _:
                return
        self.send(Progress(0, stage=f"{event['step']} {stage}"))
