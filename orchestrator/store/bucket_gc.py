"""Garbage collection in a bucket. Objects there cannot be renamed, so they are removed in two phases.

A step that no kept run names is *withdrawn*: a new attempt that says so is created exclusively. From then on every run
computes the step again; a run that found the result before has the grace period to download it. In a later collection,
an object is removed, its manifest first, if no step points to it and none did within the grace period. The same holds
for the keys of a step that was withdrawn, or had no result, that long ago. A commit of an object that exists already
writes its manifest again, and the manifest's time is checked again right before the removal.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.backend import Garbage, attempt_key
from ratchet.orchestrator.store.bucket import Bucket
from ratchet.orchestrator.store.manifest import NAME
from ratchet.orchestrator.store.parallel import OnProgress, ignore_progress, map_parallel

THREADS, PAGE = 64, 1000
"""Concurrent requests, since latency is high; and keys per page of a listing."""


@dataclass
class _Found:
    """Totals of the keys below a step or an object."""

    bytes: int = 0
    youngest: float = 0.0
    attempt: int = 0


def plan(store: Store, wanted: set[str], before: float, on_progress: OnProgress = ignore_progress) -> list[Garbage]:
    """Find garbage in the bucket of a store; none if it has no bucket.

    wanted: ids of the steps to keep. before: anything written since then, in seconds since 1970, is kept too.
    """
    bucket = store.backend
    if not isinstance(bucket, Bucket):
        return []
    steps, objects = _group_keys(bucket, "steps", on_progress), _group_keys(bucket, "objects", on_progress)
    ends = _read_ends(store, [(step_id, step.attempt) for step_id, step in steps.items()], on_progress)
    garbage: list[Garbage] = []
    in_use: set[str] = set()
    for step_id, step in sorted(steps.items()):
        end = ends[step_id]
        old = step.youngest < before
        if "commit" in end:
            in_use.add(end["commit"]["manifest"])
            if step_id not in wanted and old:
                garbage.append(Garbage(f"steps/{step_id}", "a step that no kept run names", 0, remote=True))
        elif step_id not in wanted and old:
            garbage.append(Garbage(f"steps/{step_id}", "attempts of a step without a result", step.bytes, remote=True))
        elif "withdrawn" in end and not old:
            withdrawn = store.read(f"{attempt_key(step_id, end['withdrawn'])}/end") or {}
            if "commit" in withdrawn:
                in_use.add(withdrawn["commit"]["manifest"])
    for digest, item in sorted(objects.items()):
        if digest not in in_use and item.youngest < before:
            garbage.append(Garbage(f"objects/{digest}", "an object of no step", item.bytes, remote=True))
    return garbage


def sweep(
    store: Store, garbage: Sequence[Garbage], before: float, on_progress: OnProgress = ignore_progress
) -> list[Garbage]:
    """Remove garbage, except what was used since, and return what was removed. Safe to kill at any point."""
    bucket = store.backend
    if not isinstance(bucket, Bucket):
        return []

    def remove(item: Garbage) -> bool:
        kind, name = item.key.split("/")
        if kind == "objects":
            return bucket.clear(f"{item.key}/{NAME}", before) and bucket.clear(item.key, before)
        attempt, end = store.newest(name)
        if end and "commit" in end:
            return store.create(f"{attempt_key(name, attempt + 1)}/end", {"withdrawn": attempt, "at": time.time()})
        return bucket.clear(item.key, before)

    return map_parallel(
        THREADS, lambda item: [item] if remove(item) else [], garbage, "removed from the bucket", on_progress
    )


def _group_keys(bucket: Bucket, kind: str, on_progress: OnProgress) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for number, (key, size, written) in enumerate(bucket.list_objects(kind), 1):
        if number % PAGE == 0:
            on_progress(f"keys of {kind}", number, None)
        _, name, *rest = key.split("/")
        item = found.setdefault(name, _Found())
        item.bytes += size
        item.youngest = max(item.youngest, written)
        if rest[0] == "attempts":
            item.attempt = max(item.attempt, int(rest[1]))
    return found


def _read_ends(store: Store, steps: Sequence[tuple[str, int]], on_progress: OnProgress) -> dict[str, Any]:
    """Return step id -> how its newest attempt ended, {} if it has not. steps: ids and newest attempts."""

    def read_end(step: tuple[str, int]) -> list[tuple[str, Any]]:
        step_id, attempt = step
        return [(step_id, store.read(f"{attempt_key(step_id, attempt)}/end") or {})]

    return dict(map_parallel(THREADS, read_end, steps, "steps in the bucket", on_progress))
