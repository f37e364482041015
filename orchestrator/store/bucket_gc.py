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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from orchestrator.store import Store
from orchestrator.store.bucket import AT_ONCE, Bucket
from orchestrator.store.home import Doomed, attempt_key
from orchestrator.store.manifest import NAME

READS_AT_ONCE = 64
"""Of small objects: there may be a million, and each takes the time of a request."""


@dataclass
class _Found:
    """What the bucket lists below a step or an object."""

    bytes: int = 0
    youngest: float = 0.0
    epoch: int = 0


def plan(store: Store, wanted: set[str], before: float) -> list[Doomed]:
    """What can go; of a store without a bucket, nothing. wanted: ids of steps that stay; before: what was written
    since, in seconds since 1970, stays too."""
    bucket = store.home
    if not isinstance(bucket, Bucket):
        return []
    steps, objects = _grouped(bucket, "steps"), _grouped(bucket, "objects")
    ends = _ends(store, {step_id: step.epoch for step_id, step in steps.items()})
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


def sweep(store: Store, doomed: Sequence[Doomed], before: float) -> list[Doomed]:
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

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [item for item, is_gone in zip(doomed, pool.map(gone, doomed), strict=True) if is_gone]


def _grouped(bucket: Bucket, kind: str) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for key, (size, written) in bucket.listed(kind).items():
        _, name, *rest = key.split("/")
        item = found.setdefault(name, _Found())
        item.bytes += size
        item.youngest = max(item.youngest, written)
        if rest[0] == "epochs":
            item.epoch = max(item.epoch, int(rest[1]))
    return found


def _ends(store: Store, epochs: dict[str, int]) -> dict[str, Any]:
    """Step id -> how its newest attempt ended; empty where it did not."""
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        keys = [f"{attempt_key(step_id, epoch)}/end" for step_id, epoch in epochs.items()]
        return dict(zip(epochs, (end or {} for end in pool.map(store.read, keys)), strict=True))
