"""A run: the plan carried out, step by step, as far as it goes; then the report.

The loop decides nothing by itself: `schedule` says what to start and what to skip, `execute` carries single steps
out, `store` keeps results. Kill it anywhere and give the same command again.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from jobs.job import Resources
from orchestrator.cluster import Cluster, demand_of
from orchestrator.errors import InputError, Interrupted, Unreachable
from orchestrator.execute import Executor, versions
from orchestrator.failures import sentence
from orchestrator.journal import Journal
from orchestrator.plan import Plan, config_of, describe_inputs
from orchestrator.recipe import Recipe
from orchestrator.schedule import Demand, Status, finished, to_skip, to_start
from orchestrator.step import Step, Summary
from orchestrator.store import Commit, Store
from orchestrator.store.lease import Leases
from orchestrator.watch import Watcher

TICK = 0.3
"""Seconds between looks at the steps' progress."""

MACHINES_SECONDS = 60.0
"""For the machines of a cluster that was started, or lost some, a moment ago."""

MAX_STEPS_AT_ONCE = 64
"""Threads that wait for steps; the cluster's resources bound what really runs."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    plan: Plan
    summary: Summary
    status: Mapping[str, Status]
    failures: Mapping[str, str]
    interrupted: bool

    @property
    def word(self) -> str:
        return "interrupted" if self.interrupted else "failed" if self.failures else "finished"


class Run:
    """Carries a plan out on a cluster. One use."""

    def __init__(
        self,
        recipe: Recipe,
        summary: Summary,
        plan: Plan,
        cluster: Cluster,
        journal: Journal,
        view: Watcher,
        stop: threading.Event | None = None,
    ) -> None:
        """stop: set by another thread, it ends the run as ctrl-C does."""
        self.recipe = recipe
        self.summary = summary
        self.plan = plan
        self.cluster = cluster
        self.journal = journal
        self.view = view
        self.stop = stop or threading.Event()
        self.order = list(plan.steps)
        self.status = dict.fromkeys(self.order, Status.PENDING)
        self.demand: dict[str, Demand] = {}
        self.failures: dict[str, str] = {}

    def carry_out(self) -> Outcome:
        """Runs until nothing more can: every step is done, failed, or needs one that failed."""
        interrupted = False
        self._look()
        self._remember()
        if not finished(self.status):
            with (
                Leases(self.plan.store, self.journal.run_id) as leases,
                ThreadPoolExecutor(MAX_STEPS_AT_ONCE, thread_name_prefix="step") as pool,
            ):
                executor = Executor(self.plan, leases, self.cluster, self.journal, self.view)
                try:
                    self._start_cluster()
                    self._loop(executor, pool)
                except KeyboardInterrupt:
                    interrupted = True
                    self.view.message(
                        "stopping: finished steps, shards and checkpoints stay; ctrl-c again to leave at once"
                    )
                finally:
                    executor.stopping.set()
        self._remember()
        self.journal.event("end", None, failures=self.failures, interrupted=interrupted)
        return Outcome(self.plan, self.summary, self.status, self.failures, interrupted)

    def _loop(self, executor: Executor, pool: ThreadPoolExecutor) -> None:
        running: dict[Future[Commit], str] = {}
        while not finished(self.status):
            if self.stop.is_set():
                raise KeyboardInterrupt
            for name, because in to_skip(self.order, self.status, self.plan.parents).items():
                self.status[name] = Status.SKIPPED
                self.journal.event("skipped", name, because=because)
                self.view.skipped(name, because)
            for name in to_start(self.order, self.status, self.demand, self.cluster.maximum()):
                self.status[name] = Status.RUNNING
                running[pool.submit(executor.carry_out, name)] = name
            done, _ = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
            for name, progress in self.cluster.news().items():
                self.view.progress(name, progress)
            for future in done:
                self._settle(running.pop(future), future)

    def _settle(self, name: str, future: Future[Commit]) -> None:
        """Takes a step's end in: its result, or why there is none."""
        try:
            commit = future.result()
        except Interrupted:
            raise KeyboardInterrupt from None
        except Exception as error:
            self.status[name] = Status.FAILED
            self.failures[name] = sentence(error)
            self.journal.event("failed", name, reason=self.failures[name])
            self.view.failed(name, self.failures[name])
            return
        self.plan.done(name, commit)
        self.status[name] = Status.DONE
        seconds = commit.record["seconds"]
        self.journal.event("done", name, step_id=commit.step_id, seconds=seconds, attempt=commit.attempt)
        self.view.finished(name, seconds, self._headline(name))
        for lost in commit.record.get("lost", []):
            self.journal.event("lost", name, **lost)
            again = f", {lost['amount']:g} {lost['unit']} done again" if lost["amount"] is not None else ""
            self.view.message(f"{name}: {lost['what']}: lost{again}")
        self._look()
        self._remember()

    def _headline(self, name: str) -> dict[str, float]:
        """A step's numbers: those that the recipe's table shows, else all."""
        manifest = self.plan.steps[name].manifest
        assert manifest is not None
        metrics = manifest.result.get("metrics", {})
        shown = {
            metric.name for row in self.summary.rows for metric in row.columns.values() if metric.step.name == name
        }
        return {k: v for k, v in metrics.items() if isinstance(v, int | float) and (not shown or k in shown)}

    def _look(self) -> None:
        """Moves the pending steps on whose inputs, or whose results, exist now; parents come before children."""
        for name in self.order:
            if self.status[name] is not Status.PENDING:
                continue
            planned = self.plan.resolve(name)
            if planned.commit is not None:
                self.status[name] = Status.DONE
                self.journal.event("hit", name, step_id=planned.step_id)
                self.view.hit(name)
            elif planned.step_id is not None:
                self.status[name] = Status.READY

    def _start_cluster(self) -> None:
        if not self.cluster.started:
            self.view.message("starting Ray" if not self.cluster.address else f"connecting to {self.cluster.address}")
        self.cluster.start()
        until = time.monotonic() + (MACHINES_SECONDS if self.cluster.joined else 0.0)
        for name, planned in self.plan.steps.items():
            if self.status[name] is not Status.DONE:
                self.demand[name] = demand_of(self._placed(planned.step, until))

    def _placed(self, step: Step, until: float) -> Resources:
        """The step's resources on the cluster; where others manage that, its machines have until then to come."""
        said = False
        while True:
            try:
                return self.cluster.placed(step)
            except InputError as error:
                if time.monotonic() > until:
                    raise
                if not said:
                    self.view.message(f"waiting up to {MACHINES_SECONDS:.0f} s for machines: {error}")
                said = True
                time.sleep(1.0)

    def _remember(self) -> None:
        """Writes what is known of every step: what gc keeps, and what the next run compares with."""
        steps = [
            {
                "name": name,
                "job": planned.step.job.name,
                "step_id": planned.step_id,
                "status": self.status[name].value,
                "inputs": describe_inputs(planned.step),
                "config": config_of(planned.step),
            }
            for name, planned in self.plan.steps.items()
        ]
        self.journal.write("plan.json", {"recipe": self.recipe.name, "steps": steps})
        # What could not be told now is told after the next step; and at the end, where it is an error.
        with suppress(Unreachable):
            self.plan.store.publish(self.journal.folder)


def begin(
    recipe: Recipe,
    steps: Sequence[Step],
    store: Store,
    parameters: Mapping[str, Any],
    argv: Sequence[str],
    repair: bool,
) -> tuple[Plan, Journal]:
    """Plans the steps and lets each job check its input; then opens the run's journal.

    Raises the job's error for bad input: no journal is begun and no Ray started.
    """
    plan = Plan(steps, store, repair=repair)
    plan.check()
    about = {"command": shlex.join(argv), "parameters": dict(parameters), "versions": versions(), "doc": recipe.doc}
    return plan, Journal.begin(store, recipe.name, about)
