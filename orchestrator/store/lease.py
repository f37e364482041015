"""Who works on a step. Attempts are numbered epochs, and each epoch ends in exactly one way.

    begun/<id>.<n>                   from before there is a lease until its epoch has ended, for who looks for leases
    steps/<id>/epochs/<n>/lease      created exclusively by the owner of attempt n
    steps/<id>/epochs/<n>/heartbeat  a counter that the owner raises
    steps/<id>/epochs/<n>/end        created exclusively, by the owner (commit, failed, released) or by who takes over
                                     (revoked): whoever is first decides

An epoch begins only after the one before it ended without a result, so a step's history is one line, and its newest
end the truth. An owner that was stopped for an hour and wakes up between its last look and its commit finds the epoch
ended: a stale epoch cannot commit, with nothing but exclusive creation (no locks, no compare-and-swap, no comparison
of clocks).
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from obstore.exceptions import BaseError

from jobs.job import Result
from orchestrator.errors import Fenced
from orchestrator.store import Commit, Store
from orchestrator.store.home import attempt_key

TTL = 60.0
"""Seconds without a heartbeat after which an owner elsewhere counts as gone."""

BEATS = 12
"""In that time; the seconds that a lost attempt lasted are known as finely."""


@dataclass(frozen=True)
class Held:
    """Somebody else works on the step. `owner`: who, for people."""

    owner: str


@dataclass(frozen=True)
class Lease:
    """Attempt `epoch` of a step is ours, until it is ended."""

    leases: Leases
    step_id: str
    epoch: int

    def commit(self, staging: Path, result: Result, identity: Mapping[str, Any], record: Mapping[str, Any]) -> Commit:
        """Makes a staged folder the step's result; visible in one step, at the end of the epoch.

        Raises Fenced if the epoch was ended by somebody else, StoreError if the disk is full; then nothing is visible.
        """
        store = self.leases.store
        commit = Commit(self.step_id, store.place(staging, result), self.epoch, identity, record)
        with store.room(staging):
            if not self._end({"commit": asdict(commit)}):
                end = store.read(f"{self._key}/end")
                raise Fenced(
                    f"step {self.step_id[:12]}, attempt {self.epoch}: taken over by {end.get('revoked_by', 'somebody')}"
                )
        store.clear(self.step_id)
        return commit

    def fail(self, reason: str) -> None:
        """Ends the epoch without a result. If even that cannot be written, it ends by its missing heartbeat."""
        with contextlib.suppress(OSError, BaseError):
            self._end({"failed": reason})

    def release(self) -> None:
        """Ends the epoch: nothing came of it."""
        with contextlib.suppress(OSError, BaseError):
            self._end({"released": True})

    @property
    def _key(self) -> str:
        return attempt_key(self.step_id, self.epoch)

    def _end(self, how: Mapping[str, Any]) -> bool:
        store = self.leases.store
        try:
            ended = store.create(f"{self._key}/end", {**how, "at": time.time()})
        finally:
            self.leases.drop(self)
        if ended:
            store.remove(_begun(self.step_id, self.epoch))
        return ended


class Leases:
    """The leases of this process; a thread keeps them alive. Use as a context manager."""

    def __init__(self, store: Store, run_id: str, ttl: float = TTL) -> None:
        self.store = store
        self.run_id = run_id
        self.ttl = ttl
        self._ours: set[Lease] = set()
        self._seen: dict[str, tuple[int, Any, float]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Leases:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()
        for lease in list(self._ours):
            lease.release()

    def acquire(self, step_id: str) -> Lease | Held | Commit:
        """The step's next attempt; or who is at it; or its result. An owner that is gone is taken over from."""
        while True:
            epoch, end = self.store.newest(step_id)
            key = attempt_key(step_id, epoch)
            if end is not None and "commit" in end:
                return Commit(**end["commit"])
            if epoch and end is None and (owner := self.store.read(f"{key}/lease")) is not None:
                if not self._gone(step_id, epoch, owner):
                    return Held(_sentence(owner))
                if self.store.create(f"{key}/end", {"revoked_by": _sentence(_me(self.run_id))}):
                    self.store.remove(_begun(step_id, epoch))
                continue
            # An epoch without a lease: who wanted it was killed while writing it.
            number = epoch if epoch and end is None else epoch + 1
            self.store.overwrite(_begun(step_id, number), {})
            if self.store.create(f"{attempt_key(step_id, number)}/lease", _me(self.run_id)):
                lease = Lease(self, step_id, number)
                with self._lock:
                    self._ours.add(lease)
                return lease

    def drop(self, lease: Lease) -> None:
        """No more heartbeats for an ended lease."""
        with self._lock:
            self._ours.discard(lease)

    def _gone(self, step_id: str, epoch: int, owner: Mapping[str, Any]) -> bool:
        """Its process ended (if it ran here), or its heartbeat stood still for `ttl` seconds of our own clock."""
        if owner["machine"] == _machine() and _started(owner["pid"]) != owner["pid_started"]:
            return True
        beat = self.store.read(f"{attempt_key(step_id, epoch)}/heartbeat")
        now = time.monotonic()
        seen = self._seen.get(step_id)
        if seen is None or seen[:2] != (epoch, beat):
            self._seen[step_id] = (epoch, beat, now)
            return False
        return now - seen[2] > self.ttl

    def _beat(self) -> None:
        count = 0
        while not self._closing.wait(self.ttl / BEATS):
            count += 1
            with self._lock:
                ours = list(self._ours)
            for lease in ours:
                # A disk that is full, or away for a moment, must not end the beat for good.
                with contextlib.suppress(OSError, BaseError):
                    self.store.overwrite(f"{lease._key}/heartbeat", {"count": count, "at": time.time()})


def holders(store: Store) -> list[tuple[str, str]]:
    """(step id, owner) of every attempt that has not ended; the owner may be gone."""
    found = []
    for name in store.below("begun"):
        step_id, _, epoch = name.partition(".")
        key = attempt_key(step_id, int(epoch))
        owner = store.read(f"{key}/lease")
        if store.read(f"{key}/end") is not None:
            store.remove(f"begun/{name}")  # who ended it was killed before this
            continue
        if owner is None:
            continue
        gone = owner["machine"] == _machine() and _started(owner["pid"]) != owner["pid_started"]
        found.append((step_id, _sentence(owner) + (", which is gone" if gone else "")))
    return found


def _begun(step_id: str, epoch: int) -> str:
    return f"begun/{step_id}.{epoch}"


def fruitless(store: Store, step_id: str, epoch: int) -> list[dict[str, Any]]:
    """The attempts before `epoch` that ended without a result, since there was one: number, why, and the seconds they
    lasted (of one whose process was lost, up to its last heartbeat)."""
    found = []
    for number in range(epoch - 1, 0, -1):
        key = attempt_key(step_id, number)
        owner, end = store.read(f"{key}/lease"), store.read(f"{key}/end") or {}
        if owner is None or "commit" in end:
            break
        beat = store.read(f"{key}/heartbeat") or {"at": owner["since"]}
        ended = beat["at"] if "revoked_by" in end else end.get("at", beat["at"])
        why = "its driver was lost" if "revoked_by" in end else end.get("failed", "it was stopped")
        found.append({"attempt": number, "why": why, "seconds": round(ended - owner["since"], 3)})
    return found[::-1]


def _me(run_id: str) -> dict[str, Any]:
    return {
        "host": platform.node(),
        "machine": _machine(),
        "pid": os.getpid(),
        "pid_started": _started(os.getpid()),
        "run": run_id,
        "since": time.time(),
    }


def _sentence(owner: Mapping[str, Any]) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(owner["since"]))
    return f"run {owner['run']} (process {owner['pid']} on {owner['host']}, since {since})"


def _machine() -> str:
    """Names the place in which a process id means something: boot, host and process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, namespace = "", ""
    return f"{platform.node()} {boot} {namespace}"


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None if there is none. A pid alone may be used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return "running"
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
