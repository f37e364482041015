"""Scheduling: which steps to start now. Pure functions without Ray, store or clock."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Status(Enum):
    PENDING = "pending"
    """An input does not exist yet."""
    READY = "ready"
    """All inputs exist; the result does not."""
    RUNNING = "running"
    TOGETHER = "together"
    """Its work is being done by another step, which loads the same model."""
    DONE = "done"
    """Committed, in this run or before."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """A step that it depends on failed."""


ROUNDING = 1e-9
"""Allowance for sums of fractions of CPUs and GPUs."""


@dataclass(frozen=True)
class Demand:
    """CPUs and GPUs that a step occupies while it runs, or that a cluster has."""

    cpus: float
    gpus: float = 0.0

    def __add__(self, other: "Demand") -> "Demand":
        return Demand(self.cpus + other.cpus, self.gpus + other.gpus)

    def within(self, capacity: "Demand") -> bool:
        return self.cpus <= capacity.cpus + ROUNDING and self.gpus <= capacity.gpus + ROUNDING


def to_start(
    status: Mapping[str, Status], demand: Mapping[str, Demand], capacity: Demand
) -> list[str]:
    """Return the ready steps that fit beside the running steps, in the order of `status` (the order of the recipe).

    A step that does not fit waits. Later steps pass it if they need nothing of what it lacks (steps without GPUs one
    that waits for GPUs), so that they cannot starve it. A step larger than the whole cluster starts when nothing else
    runs, since the autoscaler may add machines.
    """
    running = [name for name, state in status.items() if state is Status.RUNNING]
    used = sum((demand[name] for name in running), Demand(0))
    lacks_cpus = lacks_gpus = False
    chosen: list[str] = []
    for name, state in status.items():
        if state is not Status.READY:
            continue
        own = demand[name]
        if (lacks_cpus and own.cpus) or (lacks_gpus and own.gpus):
            continue
        together = used + own
        if together.within(capacity) or not running + chosen:
            used = together
            chosen.append(name)
        elif together.gpus > capacity.gpus + ROUNDING:
            lacks_gpus = True  # with them it gets CPUs too
        else:
            lacks_cpus = True
    return chosen


def combine(
    status: Mapping[str, Status], loads: Mapping[str, Any], demand: Mapping[str, Demand]
) -> dict[str, list[str]]:
    """Return step -> the other ready steps that load the same, so that its workers can do their work with one load.

    loads: step -> what it loads; steps without it are alone. The step with the largest demand stands for the others,
    the earliest of several."""
    alike: dict[Any, list[str]] = {}
    for name, state in status.items():
        if state is Status.READY and name in loads:
            alike.setdefault(loads[name], []).append(name)
    found = {}
    for names in alike.values():
        first = max(names, key=lambda name: (demand[name].gpus, demand[name].cpus))
        if len(names) > 1:
            found[first] = [name for name in names if name != first]
    return found


def to_skip(status: Mapping[str, Status], parents: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return step that cannot run -> its failed or skipped parent. status: parents before children."""
    lost = {name for name, state in status.items() if state in (Status.FAILED, Status.SKIPPED)}
    skipped = {}
    for name, state in status.items():
        if state in (Status.PENDING, Status.READY):
            because = next((parent for parent in parents[name] if parent in lost), None)
            if because is not None:
                skipped[name] = because
                lost.add(name)
    return skipped


def finished(status: Mapping[str, Status]) -> bool:
    """Return whether every step is done, failed or skipped."""
    return all(s in (Status.DONE, Status.FAILED, Status.SKIPPED) for s in status.values())
