"""Scheduling: which steps to start now. Pure functions without Ray, store or clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    PENDING = "pending"
    """An input does not exist yet."""
    READY = "ready"
    """All inputs exist; the result does not."""
    RUNNING = "running"
    DONE = "done"
    """Committed, in this run or before."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """A step that it depends on failed."""


@dataclass(frozen=True)
class Demand:
    """Resources: those that a step occupies while it runs, or those of a cluster."""

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
    """Return the ready steps that fit beside the running ones, in the recipe's order.

    A step that does not fit blocks all later ones, so that smaller steps cannot starve it. A step larger than the
    whole cluster starts when nothing else runs: the autoscaler may add what it needs.
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
    """Return the steps that can no longer run -> the failed or skipped parent. order: parents before children."""
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
    """Whether no step is pending, ready or running."""
    return not any(s in (Status.PENDING, Status.READY, Status.RUNNING) for s in status.values())
