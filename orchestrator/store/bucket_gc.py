"""What of a bucket nothing needs any more, and its removal. Nothing can be moved aside there, so it goes by two steps.

A step that no kept run names is *withdrawn*: an attempt more, which says so and ends at once, created exclusively. From
then on everybody computes it again, and who found its result before that has a whole grace period to bring it. An
object to which no step points, and none did within the grace period, is removed, its manifest first; so are the keys of
a step that was withdrawn, or had no result, so long ago. Who places an object that is there already writes its manifest
anew, and that is looked at once more before it goes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.store import Store
from orchestrator.store.bucket import Bucket
from orchestrator.store.home import Doomed, attempt_key
from orchestrator.store.manifest import NAME
from orchestrator.store.many import Tell, at_once, nobody

THREADS, PAGE = 64, 1000
"""Requests at a time, since each is answered late; and of how many keys a bucket tells at a time."""


@dataclass
class _Found:
    """What the bucket lists below a step or an object."""

    bytes: int = 0
    youngest: float = 0.0
    epoch: int = 0


def plan(store: Store, wanted: set[str], before: float, tell: Tell = nobody) -> list[Doomed]:
    """What can go; of a store without a bucket, nothing. wanted: ids of steps that stay; before: what was written
    since, in seconds since 1970, stays too."""
    bucket = store.home
    if not isinstance(bucket, Bucket):
        return []
    steps, objects = _grouped(bucket, "steps", tell), _grouped(bucket, "objects", tell)
    ends = _ends(store, [(step_id, step.epoch) for step_id, step in steps.items()], tell)
    doomed: list[Doomed] = []
    pointed: set[str] = set()
    for step_id, step in sorted(steps.items()):
        end = ends[step_id]
        old = step.youngest < before
        if "commit" in end:
            pointed.add(end["commit"]["manifest"])
            if step_id not in wanted and old:
                doomed.append(Doomed(f"steps/{step_id}", "a step that no kept run names", 0, far=True))
        elif step_id not in wanted and old:
            doomed.append(Doomed(f"steps/{step_id}", "attempts of a step without a result", step.bytes, far=True))
        elif "withdrawn" in end and not old:
            withdrawn = store.read(f"{attempt_key(step_id, end['withdrawn'])}/end") or {}
            if "commit" in withdrawn:
                pointed.add(withdrawn["commit"]["manifest"])
    for digest, item in sorted(objects.items()):
        if digest not in pointed and item.youngest < before:
            doomed.append(Doomed(f"objects/{digest}", "an object of no step", item.bytes, far=True))
    return doomed


def sweep(store: Store, doomed: Sequence[Doomed], before: float, tell: Tell = nobody) -> list[Doomed]:
    """Removes them, but for those that were used since; returns what is gone. Killed anywhere, the bucket is whole."""
    bucket = store.home
    if not isinstance(bucket, Bucket):
        return []

    def gone(item: Doomed) -> bool:
        kind, name = item.key.split("/")
        if kind == "objects":
            return bucket.clear(f"{item.key}/{NAME}", before) and bucket.clear(item.key, before)
        epoch, end = store.newest(name)
        if end and "commit" in end:
            return store.create(f"{attempt_key(name, epoch + 1)}/end", {"withdrawn": epoch, "at": time.time()})
        return bucket.clear(item.key, before)

    return at_once(THREADS, lambda item: [item] if gone(item) else [], doomed, "removed from the bucket", tell)


def _grouped(bucket: Bucket, kind: str, tell: Tell) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for number, (key, size, written) in enumerate(bucket.listed(kind), 1):
        if number % PAGE == 0:
            tell(f"keys of {kind}", number, None)
        _, name, *rest = key.split("/")
        item = found.setdefault(name, _Found())
        item.bytes += size
        item.youngest = max(item.youngest, written)
        if rest[0] == "epochs":
            item.epoch = max(item.epoch, int(rest[1]))
    return found


def _ends(store: Store, steps: Sequence[tuple[str, int]], tell: Tell) -> dict[str, Any]:
    """Step id -> how its newest attempt ended; empty where it did not. steps: ids and numbers of newest attempts."""

    def of(step: tuple[str, int]) -> list[tuple[str, Any]]:
        step_id, epoch = step
        return [(step_id, store.read(f"{attempt_key(step_id, epoch)}/end") or {})]

    return dict(at_once(THREADS, of, steps, "steps in the bucket", tell))
