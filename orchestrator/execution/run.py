"""Runs: execute the steps of a plan.

The loop makes no decisions: `schedule` chooses the steps to start and to skip, `executor` runs each step, and `store`
keeps the results. A run may be killed at any point; the same command resumes it.
"""

import os
import shlex
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ratchet.errors import InputError, Interrupted, UnreachableError
from ratchet.orchestrator import atomic_file
from ratchet.orchestrator.atomic_file import allow_writing
from ratchet.orchestrator.execution import needs
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.execution.executor import Executor, describe_failure, versions
from ratchet.orchestrator.execution.schedule import (
    Demand,
    Status,
    combine,
    finished,
    to_skip,
    to_start,
)
from ratchet.orchestrator.job_interface.job import Resources
from ratchet.orchestrator.plan import Plan, describe_inputs
from ratchet.orchestrator.recipe import Recipe
from ratchet.orchestrator.run_log import RunListener, RunLog
from ratchet.orchestrator.run_models import build_models
from ratchet.orchestrator.step import Step, Summary
from ratchet.orchestrator.store import Commit, Store
from ratchet.orchestrator.store.lease import Leases
from ratchet.orchestrator.store.manifest import NAME as MANIFEST

TICK = 0.3
"""Seconds between updates of the steps' progress."""

MACHINES_TIMEOUT = 60.0
"""Seconds to wait for machines of an external cluster, which may be starting or may have lost machines."""

UPLOAD_INTERVAL = 60.0
"""Seconds between uploads of the run's folder to object storage."""

SMALL_INPUT = 64 << 20
"""Bytes of an input that is downloaded from a bucket to know how its work can be divided. A larger one has work for
all."""

MAX_STEPS_AT_ONCE = 64
"""Maximum number of threads, one per step. The resources of the cluster limit which steps actually run."""


@dataclass(eq=False)
class Run:
    """A single execution of a plan on a cluster."""

    recipe: Recipe
    summary: Summary
    plan: Plan
    cluster: Cluster
    run_log: RunLog
    view: RunListener
    stop: threading.Event = field(default_factory=threading.Event)
    """Event that another thread sets to interrupt the run like ctrl-C."""
    demand: dict[str, Demand] = field(init=False, default_factory=dict)
    loads: dict[str, Any] = field(init=False, default_factory=dict)
    """Ready step -> what it loads, if other steps may load the same."""
    together: dict[str, list[str]] = field(init=False, default_factory=dict)
    """Running step -> the steps whose work it does too."""
    failures: dict[str, str] = field(init=False, default_factory=dict)
    """Step -> message."""
    interrupted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.run_log.listener = self.view
        self.status = dict.fromkeys(self.plan.steps, Status.PENDING)
        self.uploaded = time.monotonic()

    @property
    def word(self) -> str:
        """How the run ended: finished, failed or interrupted."""
        if self.interrupted:
            return "interrupted"
        if self.failures:
            return "failed"
        return "finished"

    def execute(self) -> None:
        """Run until every step is done, failed, or depends on a failed step, or the run is interrupted."""
        self._update_status()
        self.write_plan()
        if not finished(self.status):
            with (
                Leases(self.plan.store, self.run_log.run_id) as leases,
                ThreadPoolExecutor(MAX_STEPS_AT_ONCE, thread_name_prefix="step") as pool,
            ):
                executor = Executor(self.plan, leases, self.cluster, self.run_log)
                try:
                    self._start_cluster()
                    self._loop(executor, pool)
                except KeyboardInterrupt:
                    self.interrupted = True
                    self.view.message(
                        "stopping: finished steps, shards and checkpoints are kept; press ctrl-C again to quit at once"
                    )
                finally:
                    executor.stopping.set()
        self.write_plan()
        self.run_log.event("end", None, failures=self.failures, interrupted=self.interrupted)

    def _loop(self, executor: Executor, pool: ThreadPoolExecutor) -> None:
        running = {}
        while not finished(self.status):
            if self.stop.is_set():
                raise KeyboardInterrupt
            for name, parent in to_skip(self.status, self.plan.parents).items():
                self.status[name] = Status.SKIPPED
                self.run_log.event("skipped", name, because=parent)
            for name, together in self._choose().items():
                running[pool.submit(executor.execute, name, together)] = name
            done, _ = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
            for name, progress in self.cluster.take_progress().items():
                self.view.progress(name, progress)
            for future in done:
                self._record_end(running.pop(future), future)
            if time.monotonic() - self.uploaded >= UPLOAD_INTERVAL:
                self._upload_folder()

    def _choose(self) -> dict[str, list[str]]:
        """Return the steps to start now, each with the steps whose work it does too, and update their status."""
        together = combine(self.status, self.loads, self.demand)
        status = dict(self.status)
        for others in together.values():
            status |= dict.fromkeys(others, Status.PENDING)
        chosen = {}
        for name in to_start(status, self.demand, self.cluster.maximum()):
            others = together.get(name, [])
            chosen[name] = others
            self.status[name] = Status.RUNNING
            self.status |= dict.fromkeys(others, Status.TOGETHER)
            self.together[name] = others
        return chosen

    def _release(self, name: str, *, done: bool) -> None:
        """Make the steps whose work a step should do ready. If it is done, they find it finished, and use no GPU."""
        for other in self.together.pop(name, []):
            self.status[other] = Status.READY
            if done:
                self.demand[other] = Demand(1)
                self.loads.pop(other)
            else:
                self._set_demand(other)

    def _record_end(self, name: str, future: Future[Commit]) -> None:
        """Record the end of a step: its result or its error."""
        try:
            commit = future.result()
        except Interrupted:
            raise KeyboardInterrupt from None
        except Exception as error:
            self._release(name, done=False)
            self.status[name] = Status.FAILED
            self.failures[name] = describe_failure(error)
            self.run_log.event("failed", name, reason=self.failures[name])
            return
        self._release(name, done=True)
        self.plan.record(name, commit, self.plan.store.manifest(commit.manifest))
        self.status[name] = Status.DONE
        about = {"seconds": commit.record["seconds"], "metrics": self._select_metrics(name)}
        about |= {"step_id": commit.step_id, "attempt": commit.attempt}
        self.run_log.event("done", name, **about)
        note = self.plan.steps[name].result.get("note")
        if note:
            self.view.message(f"{name}: {note}")
        self._update_status()
        self.write_plan()

    def _select_metrics(self, name: str) -> dict[str, float]:
        """Return the metrics of a step to show: those in the recipe's table, or all if none is in it."""
        numbers = self.plan.steps[name].numbers
        shown = {}
        for row in self.summary.rows:
            for _, metric in row.metrics:
                if metric.step.name == name and metric.name in numbers:
                    shown[metric.name] = numbers[metric.name]
        return shown or numbers

    def _upload_folder(self) -> None:
        """Upload the folder of the run to object storage. An upload that fails is retried after the next step; at the
        end of the run, a failure is an error."""
        self.uploaded = time.monotonic()
        with suppress(UnreachableError):
            self.plan.store.backend.send(self.run_log.folder)

    def _update_status(self) -> None:
        """Update the status of pending steps whose inputs or results exist now. Parents come before children."""
        for name in self.plan.steps:
            if self.status[name] is not Status.PENDING:
                continue
            planned = self.plan.resolve(name)
            if planned.commit is not None:
                self.status[name] = Status.DONE
                self.run_log.event("hit", name, step_id=planned.step_id)
            elif planned.step_id:
                self.status[name] = Status.READY
                load = self.plan.find_load(name)
                if load is not None:
                    self.loads[name] = load
                if self.cluster.started:
                    self._set_demand(name)

    def _start_cluster(self) -> None:
        if not self.cluster.started:
            self.view.message(
                "starting Ray"
                if not self.cluster.address
                else f"connecting to {self.cluster.address}"
            )
        self.cluster.start()
        until = time.monotonic() + (MACHINES_TIMEOUT if self.cluster.is_external else 0.0)
        for name, planned in self.plan.steps.items():
            if self.status[name] is not Status.DONE:
                gpus = self._place(planned.step, until).gpus
                planned.step = replace(planned.step, default_gpus=gpus or None)
                self._set_demand(name)

    def _set_demand(self, name: str) -> None:
        """Set what a step occupies while it runs. It is known exactly when the step's inputs exist."""
        step = self.plan.steps[name].step
        if not step.job.uses("cpus"):
            self.demand[name] = Demand(1)
            return
        # Machines were lost since, or the bucket does not answer: the earlier demand stays.
        with suppress(InputError, UnreachableError):
            inputs = None
            if self.status[name] is Status.READY:
                inputs = self.plan.inputs(name, verified=False, most_bytes=SMALL_INPUT)
            placed = self.cluster.place(step, inputs)
            workers = placed.workers or 1
            gpus = workers * (placed.gpus or 0.0)
            self.demand[name] = Demand(workers * (placed.cpus or 0.0), gpus)

    def _place(self, step: Step, until: float) -> Resources:
        """Resolve the resources of a step. until: time.monotonic() up to which to wait for more machines."""
        announced = False
        while True:
            try:
                return self.cluster.place(step)
            except InputError as error:
                if time.monotonic() > until:
                    raise
                if not announced:
                    self.view.message(
                        f"waiting up to {MACHINES_TIMEOUT:.0f} s for machines: {error}"
                    )
                announced = True
                if self.stop.wait(1.0):
                    raise KeyboardInterrupt from None

    def copy_files(self) -> None:
        """Copy `Summary.files` into the folder of the run, as far as their steps are done."""
        for name, output in self.summary.files.items():
            source = self.plan.path_of(output, verified=False)
            if source:
                atomic_file.replace(self.run_log.folder / name, source.read_bytes())

    def locate_results(self) -> dict[str, Path]:
        """Return the verified paths of `Summary.results`; empty if one of their steps is not done."""
        found = {}
        for name, ref in self.summary.results.items():
            found[name] = self.plan.path_of(ref, verified=True)
        return {} if None in found.values() else found

    def copy_result(self, target: Path) -> None:
        """Copy the first result of the summary, if it exists, to a new folder, which appears only when complete."""
        source = next(iter(self.locate_results().values()), None)
        if source is None:
            return
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            ignored = shutil.ignore_patterns(MANIFEST)
            shutil.copytree(source, unfinished, copy_function=shutil.copyfile, ignore=ignored)
            allow_writing(unfinished)
            atomic_file.sync_tree(unfinished)
            unfinished.rename(target)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def write_plan(self) -> None:
        """Write the state of every step to the run log, for `gc` and for the next `--explain`."""
        steps = []
        for name, planned in self.plan.steps.items():
            steps.append(
                {
                    "name": name,
                    "job": planned.step.job.name,
                    "step_id": planned.step_id or None,
                    "object": planned.commit.manifest if planned.commit else None,
                    "status": self.status[name].value,
                    "inputs": describe_inputs(planned.step),
                    "config": asdict(planned.step.config),
                }
            )
        models = build_models(self.plan, self.summary, self.run_log)
        self.run_log.write(
            "plan.json",
            {
                "recipe": self.recipe.name,
                "steps": steps,
                "models": [asdict(model) for model in models],
            },
        )
        self._upload_folder()


def begin(
    recipe: Recipe,
    steps: Sequence[Step],
    store: Store,
    parameters: Mapping[str, Any],
    argv: Sequence[str],
    repair: bool,
    cluster: Cluster,
) -> tuple[Plan, RunLog]:
    """Plan and check the steps, connect to the cluster if it has an address, check needs, and begin the run log.

    Raises the error of a job's check, and InputError for steps that do not fit and for a cluster that does not answer;
    no run log is left behind.
    """
    plan = Plan(steps, store, repair=repair)
    plan.check()
    if cluster.address and plan.missing():
        cluster.start()
    machines = needs.list_known_machines()
    if cluster.started:
        machines = list(cluster.machines())
    found = needs.estimate(plan, machines)
    if not cluster.is_external:  # other machines may join it
        needs.check_fits(plan, found, machines)
    needs.check_disk(plan, found)
    about = {
        "command": shlex.join(argv),
        "parameters": dict(parameters),
        "versions": versions(),
        "doc": recipe.doc,
    }
    return plan, RunLog.begin(store, recipe.name, about)
