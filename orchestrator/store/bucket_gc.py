"""Garbage collection in a bucket. Objects there cannot be renamed, so they are removed in two phases.

A step that no kept run names is *withdrawn*: a new attempt with this end is created exclusively. From then on, runs
compute the step again; a run that found the result before has the grace period to download it. A later collection
removes an object, its manifest first, if no step has pointed to it within the grace period. It also removes the keys of
steps that were withdrawn, or had no result, before the grace period. Objects are announced before the last check that
no step points to them (see `announcement`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.backend import Garbage, attempt_key
from ratchet.orchestrator.store.bucket import Bucket
from ratchet.orchestrator.store.kept import Kept
from ratchet.orchestrator.store.manifest import NAME
from ratchet.orchestrator.store.parallel import map_parallel

THREADS = 64
"""Number of concurrent requests, since object storage has a high latency."""


@dataclass
class _Found:
    """Totals of the keys below a step or an object: their size, newest modification time, and newest attempt."""

    bytes: int = 0
    youngest: float = 0.0
    attempt: int = 0


def plan(store: Store, kept: Kept, before: float) -> list[Garbage]:
    """Find garbage in the bucket of a store; none if it has no bucket.

    kept: what to keep. before: seconds since 1970; keys that were written later are kept too.
    """
    bucket = store.backend
    if not isinstance(bucket, Bucket):
        return []
    steps = _group_keys(bucket, "steps")
    objects = _group_keys(bucket, "objects")
    ends = _read_ends(store, steps)
    in_use = kept.objects | _used_addresses(store, steps, ends, before)
    garbage: list[Garbage] = []
    for step_id, step in sorted(steps.items()):
        if kept.keeps(step_id) or step.youngest >= before:
            continue
        done = "commit" in ends[step_id]  # only withdrawn at first, which frees no space
        if done:
            why = "a step that no kept run names"
        else:
            why = "attempts of a step without a result"
        garbage.append(Garbage("steps", step_id, why, 0 if done else step.bytes, remote=True))
    for digest, item in sorted(objects.items()):
        if digest not in in_use and item.youngest < before:
            garbage.append(Garbage("objects", digest, "an object of no step", item.bytes, remote=True))
    return garbage


def sweep(store: Store, garbage: Sequence[Garbage], kept: Kept, before: float) -> list[Garbage]:
    """Remove garbage that has not been used since, and return what was removed. Safe to kill at any point.

    kept: must be found after the objects were announced (see `announcement`).
    """
    bucket = store.backend
    if not isinstance(bucket, Bucket) or not garbage:
        return []
    in_use = set(kept.objects)
    if any(item.kind == "objects" for item in garbage):
        # Read again: a step may have been committed between `plan` and the announcement of the objects.
        steps = _group_keys(bucket, "steps")
        in_use |= _used_addresses(store, steps, _read_ends(store, steps), before)

    def remove(item: Garbage) -> bool:
        if item.kind == "objects":
            unused = item.name not in in_use
            return unused and bucket.clear(item.key, before, NAME) and bucket.clear(item.key, before)
        attempt, end = store.newest(item.name)
        if end and "commit" in end:
            if end.get("at", 0.0) >= before:
                return False
            return store.create(f"{attempt_key(item.name, attempt + 1)}/end", {"withdrawn": attempt, "at": time.time()})
        # Oldest attempts first: if killed in between, an old commit must not become the newest end.
        older = (attempt_key(item.name, number) for number in range(1, attempt))
        return all(bucket.clear(key, before) for key in older) and bucket.clear(item.key, before)

    return map_parallel(THREADS, lambda item: [item] if remove(item) else [], garbage, "removed from the bucket")


def _used_addresses(store: Store, steps: Mapping[str, _Found], ends: Mapping[str, Any], before: float) -> set[str]:
    """Return the addresses of objects that steps point to, or pointed to before a withdrawal later than `before`."""
    in_use: set[str] = set()
    for step_id, end in ends.items():
        if "withdrawn" in end and steps[step_id].youngest >= before:
            end = store.read_if_whole(f"{attempt_key(step_id, end['withdrawn'])}/end") or {}
        if "commit" in end:
            in_use.add(end["commit"]["manifest"])
    return in_use


def _group_keys(bucket: Bucket, kind: str) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for meta in bucket.list_objects(kind):
        _, name, *rest = meta["path"].split("/")
        item = found.setdefault(name, _Found())
        item.bytes += meta["size"]
        item.youngest = max(item.youngest, meta["last_modified"].timestamp())
        if len(rest) > 1 and rest[0] == "attempts" and rest[1].isdecimal():
            item.attempt = max(item.attempt, int(rest[1]))
    return found


def _read_ends(store: Store, steps: Mapping[str, _Found]) -> dict[str, Any]:
    """Return step id -> the `end` object of its newest attempt, {} if it has not ended."""

    def read_end(step_id: str) -> list[tuple[str, Any]]:
        return [(step_id, store.read_if_whole(f"{attempt_key(step_id, steps[step_id].attempt)}/end") or {})]

    return dict(map_parallel(THREADS, read_end, list(steps), "steps in the bucket"))
