"""One trial, as Ray Tune sees it: a run of the recipe with the trial's settings, up to the step that decides.

The run is that of `ratchet run`, in a thread of the trial's actor; `step` hands Tune a number for each checkpoint of
the deciding step, and at last the trial's value. The actor takes no CPU: the run's steps take them, as they always
do, so a trial that waits for Tune holds nothing that another one's training waits for.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ray import tune

from jobs.job import Progress
from jobs.progress import Reporter
from orchestrator.cluster import Cluster
from orchestrator.errors import Interrupted, RatchetError
from orchestrator.failures import sentence
from orchestrator.journal import Journal
from orchestrator.plan import Plan
from orchestrator.recipe import Recipe, Settings, build, find
from orchestrator.run import Run
from orchestrator.step import Step, Summary
from orchestrator.store import Store
from orchestrator.sweep.ledger import Trial, key_of
from orchestrator.sweep.space import Point, lines, text_of
from orchestrator.sweep.target import Target, needed

PATIENCE = 60.0
"""Seconds that a trial which is told to stop may take to end its steps."""


@dataclass(frozen=True)
class Spec:
    """All that a trial needs to know; plain data."""

    recipe: str
    lines: tuple[str, ...]
    """`name=value`, of all trials."""
    target: Target
    seeds: int
    seeded: tuple[str, ...]
    """Steps whose `seed` the second and later seeds raise."""
    store: str
    folder: str
    """The sweep's."""
    known: Mapping[str, Trial]
    """Settled trials by key: they tell Tune again what they told before."""
    names: tuple[str, ...]
    """The space's settings, in its order."""
    points: tuple[Point, ...] = ()
    """Settings by number; empty where a searcher gives the values themselves."""
    board: Any = None
    """Where the driver reads the trials' progress."""

    @property
    def mode(self) -> str:
        return "max" if self.target.maximize else "min"

    def point(self, config: Mapping[str, Any]) -> Point:
        """The settings of the trial that Tune configured."""
        if "number" in config:
            return self.points[config["number"]]
        return {name: text_of(config[str(i)]) for i, name in enumerate(self.names)}

    def build(self, point: Point, seed: int) -> tuple[Recipe, list[Step]]:
        """The steps of a trial, for its seed number `seed` (0: the recipe's own)."""
        found = find(self.recipe)
        steps, _, _ = build(found, Settings.read([*self.lines, *lines(point)]))
        if seed:
            more = [f"{step.name}.seed={step.config.seed + seed}" for step in steps if step.name in self.seeded]
            steps, _, _ = build(found, Settings.read([*self.lines, *lines(point), *more]))
        return found, needed(steps, self.target.step)


class TrialActor(tune.Trainable):
    """Tune's end of a trial."""

    def setup(self, config: dict[str, Any], spec: Spec | None = None) -> None:
        if spec is not None:
            self.spec = spec
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self.stopping = threading.Event()
        self.settings = self.spec.point(config)
        self.thread = threading.Thread(target=self._live, name="trial", daemon=True)
        self.thread.start()

    def step(self) -> dict[str, Any]:
        return self.reports.get()

    def cleanup(self) -> None:
        self.stopping.set()
        self.thread.join(PATIENCE)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.cleanup()
        self.setup(new_config)
        return True

    def _live(self) -> None:
        """Whatever happens, the last thing that Tune is told is that the trial is done: `step` waits for it."""
        try:
            end = self._end()
        except Interrupted:
            end = {}
        except Exception as error:
            end = {"failed": sentence(error)}
        self.reports.put({**end, "done": True})

    def _end(self) -> dict[str, Any]:
        """Runs the trial, or tells what is known of it."""
        known = self.spec.known.get(key_of(self.settings))
        if known is not None:
            for number, value in enumerate(known.curve, 1):
                self._report(number, value)
            return {} if known.value is None else {"checkpoint": max(1, len(known.curve)), "value": known.value}
        values: list[float] = []
        curve: list[float] = []
        for seed in range(self.spec.seeds):
            value, points = self._run(seed)
            values.append(value)
            curve = curve or points
        end = {"checkpoint": max(1, len(curve)), "value": sum(values) / len(values)}
        return {**end, "ended": "finished", "values": values, "curve": curve}

    def _run(self, seed: int) -> tuple[float, list[float]]:
        """(the value, the curve) of one seed's run; the first seed's checkpoints are told as they come."""
        spec, target = self.spec, self.spec.target
        found, steps = spec.build(self.settings, seed)
        store = Store.open(spec.store)
        journal = Journal(store.local("sweeps", spec.folder, "trials", key_of(self.settings), f"seed-{seed}"))
        journal.run_id = f"{spec.folder} with {', '.join(lines(self.settings)) or 'the defaults'}"  # who waits reads it
        journal.folder.mkdir(parents=True, exist_ok=True)
        plan = Plan(steps, store)
        plan.check()
        relay = Relay(self, first=seed == 0)
        cluster = Cluster()
        try:
            outcome = Run(found, Summary(()), plan, cluster, journal, relay, self.stopping).carry_out()
        finally:
            cluster.stop()
        if outcome.interrupted:
            raise Interrupted(f"trial {self.settings}: stopped")
        if outcome.failures:
            raise TrialFailed("; ".join(f"{name}: {reason}" for name, reason in outcome.failures.items()))
        manifest = plan.steps[target.step].manifest
        assert manifest is not None  # the run has ended well
        points = target.curve(manifest.result)
        if seed == 0:
            relay.checkpoints(points)
        return target.value(manifest.result), points

    def _report(self, checkpoint: int, value: float) -> None:
        self.reports.put({"checkpoint": checkpoint, "value": value})


class TrialFailed(RatchetError):
    """A step of the trial's run failed."""


class Relay:
    """The view of a trial's run: hands its progress to the driver, and the target's checkpoints to Tune."""

    def __init__(self, trial: TrialActor, first: bool) -> None:
        self.trial, self.first, self.told = trial, first, 0
        board = trial.spec.board
        self.tell = Reporter(board, key_of(trial.settings)) if board is not None else lambda progress: None

    def progress(self, name: str, progress: Progress) -> None:
        self.tell(replace(progress, stage=f"{name} {progress.stage}".rstrip()))
        if self.first and name == self.trial.spec.target.step and self.trial.spec.target.trained:
            self.checkpoints(progress.evaluations)

    def checkpoints(self, values: Any) -> None:
        """Reports those that are new."""
        for value in values[self.told :]:
            self.told += 1
            self.trial._report(self.told, value)

    def started(self, name: str, attempt: int) -> None:
        self.tell(Progress(0, stage=f"{name} starting"))

    def waiting(self, name: str, on: str) -> None:
        self.tell(Progress(0, stage=f"{name} waits for {on}"))

    def retrying(self, name: str, reason: str, delay_s: float) -> None:
        self.tell(Progress(0, stage=f"{name} again: {reason}"))

    def hit(self, name: str) -> None: ...

    def finished(self, name: str, seconds: float, headline: Mapping[str, float]) -> None: ...

    def failed(self, name: str, message: str) -> None: ...

    def skipped(self, name: str, because: str) -> None: ...

    def message(self, text: str) -> None: ...
