"""Ray, started only when a step really has to run; quiet, since what matters is shown by the view.

A step is one Ray task without CPUs of its own: it drives Ray Data and Ray Train, which take the CPUs and GPUs.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jobs.job import Context, Job, Progress, Resources, Result
from jobs.machines import Machine, check_shared, places, resolved, room, seen, up
from jobs.progress import Reporter, start_board
from orchestrator import cluster_file
from orchestrator.errors import InputError, Interrupted
from orchestrator.identity import same_code
from orchestrator.schedule import Demand
from orchestrator.step import Step

QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "PYTHONWARNINGS": "ignore",
}
"""Libraries' chatter that nobody at the screen can act on. A variable that is already set stays."""

PATIENCE = 10.0
"""Seconds that a step which is stopped has to end by itself."""


class Cluster:
    """The machines a run uses: the cluster at `address` (or RAY_ADDRESS, or the job's own), else this machine."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.started = self.ours = False
        self.board: Any = None

    def start(self) -> None:
        """Connects or starts Ray. Costs seconds; safe to call again."""
        if self.started:
            return
        for key, value in QUIET.items():
            os.environ.setdefault(key, value)
        import logging

        import ray

        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        self.ours = not ray.is_initialized()  # a sweep's trial lives in the sweep's Ray
        if self.ours and self.address:
            ray.init(address=self.address, **options)
        elif self.ours:
            # Local, whatever else runs here; with its dashboard, which Ray Train asks who lives, to free the places of
            # a training whose driver was killed.
            ray.init(address="local", include_dashboard=True, num_cpus=os.cpu_count(), **options)
        self.board = start_board()
        self.started = True

    @property
    def joined(self) -> bool:
        """Whether it is others' to start and end machines, without a word of what may come."""
        return bool(self.address) and self._brought is None

    @cached_property
    def _brought(self) -> list[Machine] | None:
        """What RATCHET_CLUSTER tells, read once: a run asks at every look at its steps."""
        file = os.environ.get("RATCHET_CLUSTER")
        return cluster_file.machines(Path(file).expanduser()) if file else None

    def machines(self) -> list[Machine]:
        """What is up; or, where RATCHET_CLUSTER says so, the most that an autoscaler may bring of each kind."""
        return up() if self._brought is None else self._brought

    def maximum(self) -> Demand:
        """CPUs and GPUs of all of them."""
        machines = self.machines()
        return Demand(sum(m.cpus * m.count for m in machines), sum(m.gpus * m.count for m in machines))

    def resolved(self, resources: Resources) -> Resources:
        """Resources without a None, for this cluster at its largest."""
        return resolved(resources, self.machines())

    def placed(self, step: Step) -> Resources:
        """The step's, resolved, with as many workers as fit. Raises InputError, with the arithmetic, for what the
        cluster can never place."""
        machines = self.machines()
        asked = resolved(step.resources, machines)
        if (workers := room(machines, asked)) == 0:
            have = ", ".join(f"{m.count} of {m.cpus:g} CPUs and {m.gpus:g} GPUs" for m in machines)
            memory = f"{asked.memory:g} GB" if asked.memory else ""
            wanted = "".join(f", {part}" for part in (memory, asked.accelerator, *asked.labels) if part)
            raise InputError(
                f"step {step.name}: {asked.workers} workers of {asked.cpus:g} CPUs and {asked.gpus:g} GPUs"
                f"{wanted} given; expected at most the {places(machines, asked)} that fit on the cluster at its largest"
                f" (machines: {have}); lower them with --set {step.job.name}.workers=... or .cpus=..., or say from how"
                f" many to begin with --set {step.job.name}.min_workers=..."
            )
        return replace(asked, workers=workers)

    def run(
        self,
        job: Job,
        code: Mapping[str, str],
        context: Context,
        config: Any,
        inputs: Any,
        stopping: threading.Event,
    ) -> Result:
        """Runs a step somewhere on the cluster and waits.

        Raises InputError if the job's code there is not `code`, what the job raised, an error of ray.exceptions for a
        lost worker, and Interrupted once `stopping` is set (the step's processes are ended first).
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        context = replace(context, progress=Reporter(self.board, context.step))
        # Outside of a sweep's trial's place, in which there is none for what the step starts.
        free = PlacementGroupSchedulingStrategy(placement_group=None)  # type: ignore[arg-type]
        task = ray.remote(num_cpus=0, max_retries=0)(_run).options(name=context.step, scheduling_strategy=free)
        running = task.remote(job, code, context, config, inputs, seen(context.work, inputs))
        try:
            while not ray.wait([running], timeout=0.5)[0]:
                if stopping.is_set():
                    # First as ctrl-C does, which lets Ray Train end its workers and give back their places.
                    ray.cancel(running)
                    if not ray.wait([running], timeout=PATIENCE)[0]:
                        ray.cancel(running, force=True)
                    raise Interrupted(f"step {context.step}: stopped")
            return ray.get(running)
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, BaseException) else error
            cause.__dict__.setdefault("remote_traceback", str(error))
            raise cause from None

    def news(self) -> dict[str, Progress]:
        """The latest progress of each step since the last call."""
        if not self.started:
            return {}
        import ray

        return ray.get(self.board.take.remote())

    def stop(self) -> None:
        """Leaves the cluster; ends the Ray that `start` started."""
        if self.started:
            import ray

            ray.kill(self.board)
            if self.ours:
                ray.shutdown()
            self.started = False


def _run(
    job: Job, code: Mapping[str, str], context: Context, config: Any, inputs: Any, paths: Sequence[Path]
) -> Result:
    same_code(job, code)
    check_shared(context.step, paths)
    try:
        return job.run(context, config, inputs)
    finally:
        try:
            # Actors that the job started have imported the files later than this process.
            same_code(job, code)
        except InputError:
            shutil.rmtree(context.work, ignore_errors=True)  # their shards may be of the other version
            raise


def demand_of(resources: Resources) -> Demand:
    """What a step with resolved resources occupies."""
    assert resources.workers is not None
    assert resources.cpus is not None
    assert resources.gpus is not None
    return Demand(resources.workers * resources.cpus, resources.workers * resources.gpus)
