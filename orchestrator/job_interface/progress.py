"""Progress of steps, sent from their workers to the driver."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ratchet.orchestrator.job_interface.job import Progress


class ProgressActor:
    """Ray actor that holds the latest progress of each step until the driver takes it."""

    def __init__(self) -> None:
        self.latest: dict[str, Progress] = {}

    def put(self, step: str, progress: Progress) -> None:
        self.latest[step] = progress

    def take(self) -> dict[str, Progress]:
        taken = self.latest
        self.latest = {}
        return taken


class ProgressReporter:
    """`Context.progress` on a cluster: sends progress to the actor without waiting. It can be pickled."""

    def __init__(self, actor: Any, step: str) -> None:
        self.actor = actor
        self.step = step

    def __call__(self, progress: Progress) -> None:
        self.actor.put.remote(self.step, progress)


def start_progress_actor() -> Any:
    """Start a ProgressActor on this machine."""
    return ray.remote(num_cpus=0, scheduling_strategy=make_this_node_strategy())(
        ProgressActor
    ).remote()


def make_this_node_strategy() -> Any:
    """Return the scheduling strategy of actors that only serve this process.

    These actors run on the same machine, so that the loss of another machine does not affect them, and outside the
    placement group of a sweep's trial, which has no free resources.
    """
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
