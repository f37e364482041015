"""Which steps to start now: a pure function of what stands where. Knows no Ray, no store and no clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    PENDING = "pending"
    """Some input is not made yet."""
    READY = "ready"
    """Every input exists; the step's result does not."""
    RUNNING = "running"
    DONE = "done"
    """Committed, now or before."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """Something that it needs failed."""


@dataclass(frozen=True)
class Demand:
    """What a step occupies while it runs, or what a cluster has."""

    cpus: float
    gpus: float = 0.0

    def __add__(self, other: Demand) -> Demand:
        return Demand(self.cpus + other.cpus, self.gpus + other.gpus)

    def within(self, capacity: Demand) -> bool:
        return self.cpus <= capacity.cpus + 1e-9 and self.gpus <= capacity.gpus + 1e-9


def to_start(
    order: Sequence[str],
    status: Mapping[str, Status],
    demand: Mapping[str, Demand],
    capacity: Demand,
) -> list[str]:
    """The ready steps that fit beside those that run, in the recipe's order.

    An earlier step that does not fit holds its place: smaller steps behind it don't overtake it for ever, since
    nothing that would delay it is started. A step larger than the whole cluster starts alone: an autoscaler may
    bring what it needs.
    """
    used = Demand(0)
    running = 0
    for name in order:
        if status[name] is Status.RUNNING:
            used, running = used + demand[name], running + 1
    chosen: list[str] = []
    for name in order:
        if status[name] is not Status.READY:
            continue
        if not (used + demand[name]).within(capacity) and running + len(chosen):
            break
        used = used + demand[name]
        chosen.append(name)
    return chosen


def to_skip(
    order: Sequence[str], status: Mapping[str, Status], parents: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """Steps that can no longer run -> the failed or skipped step that they need. `order`: parents before children."""
    lost = {name for name in order if status[name] in (Status.FAILED, Status.SKIPPED)}
    skipped: dict[str, str] = {}
    for name in order:
        if status[name] in (Status.PENDING, Status.READY):
            because = next((parent for parent in parents[name] if parent in lost), None)
            if because is not None:
                skipped[name] = because
                lost.add(name)
    return skipped


def finished(status: Mapping[str, Status]) -> bool:
    """Whether nothing more can happen."""
    return not any(s in (Status.PENDING, Status.READY, Status.RUNNING) for s in status.values())
