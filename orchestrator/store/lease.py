"""Leases: who works on a step. Attempts of a step are numbered, and each attempt ends in exactly one way.

docs/architecture.md describes the files. An attempt begins only after the one before it ended without a result, so the
history of a step is linear and its newest end is the truth. An owner that was suspended for an hour and wakes up right
before its commit finds its attempt ended and cannot commit. This needs only exclusive creation: no locks, no
compare-and-swap, no synchronized clocks.
"""

from __future__ import annotations

import math
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import DamagedError, LeaseLost
from ratchet.orchestrator.job_interface.job import Result
from ratchet.orchestrator.store import Commit, Store, audit_log
from ratchet.orchestrator.store.backend import attempt_key

TTL = 60.0
"""Seconds without a heartbeat after which an owner on another machine counts as lost."""

BEATS = 12
"""Heartbeats per TTL: the resolution at which the duration of a lost attempt is known."""

LOST = 86_400.0
"""Seconds without a sign of life after which a process on another machine is lost for `gc`."""

HIDDEN = "running"
"""The start of a process that lives and of which the system does not tell more."""


@dataclass(frozen=True)
class HeldByOther:
    """Another process works on the step. `owner` describes it."""

    owner: str


@dataclass(frozen=True)
class Lease:
    """The right of this process to commit one attempt of a step, until the attempt ends."""

    leases: Leases
    step_id: str
    attempt: int

    def commit(
        self, staging: Path, result: Result, fingerprint: Mapping[str, Any], record: Mapping[str, Any]
    ) -> Commit:
        """Make a staging folder the step's result and end the attempt. The result becomes visible atomically.

        Raises LeaseLost if another process ended or removed the attempt and StoreError if the disk is full; then
        nothing is visible.
        """
        store = self.leases.store
        manifest = store.add_object(staging, result, self._announce)
        # After a day without a heartbeat `gc` removes the step, and the job may have written only the rest since then.
        if (store.read_if_whole(f"{self._key}/lease") or {}).get("run") != self.leases.run_id:
            raise LeaseLost(f"step {self.step_id[:12]}, attempt {self.attempt}: removed by a garbage collection")
        commit = Commit(self.step_id, manifest.digest, self.attempt, fingerprint, record)
        with store.report_full_disk(staging):
            if not self._create_end({"commit": asdict(commit)}):
                owner = (store.read(f"{self._key}/end") or {}).get("revoked_by", "another process")
                raise LeaseLost(f"step {self.step_id[:12]}, attempt {self.attempt}: taken over by {owner}")
        audit_log.record(store, "commit", self.leases.run_id, commit, name=record.get("name"), bytes=manifest.size)
        store.clear(self.step_id)
        return commit

    def fail(self, reason: str) -> bool:
        """End the attempt without a result. Returns False if another process ended it. If that cannot be written, the
        attempt ends when its heartbeat expires."""
        with suppress(OSError):
            return self._create_end({"failed": reason})
        return True

    def keep_step(self, step_id: str) -> None:
        """Have `gc` keep another step while this attempt runs, instead of the one given before."""
        self.leases.store.overwrite(_open_key(self.step_id, self.attempt), {"step": step_id})

    def _announce(self, digest: str) -> None:
        """Name the object that this attempt is about to commit, so that `gc` keeps it."""
        self.leases.store.overwrite(_open_key(self.step_id, self.attempt), {"object": digest})

    @property
    def _key(self) -> str:
        return attempt_key(self.step_id, self.attempt)

    def _create_end(self, how: Mapping[str, Any]) -> bool:
        store = self.leases.store
        try:
            ended = store.create(f"{self._key}/end", {**how, "at": time.time()})
        finally:
            with self.leases._lock:
                self.leases._held.discard(self)  # ends its heartbeat
        if ended:
            store.remove(_open_key(self.step_id, self.attempt))
        return ended


class Leases:
    """The leases of this process, kept alive by a thread. Use as a context manager."""

    def __init__(self, store: Store, run_id: str, ttl: float = TTL) -> None:
        self.store = store
        self.run_id = run_id
        self.ttl = ttl
        self._held: set[Lease] = set()
        self._last_beats: dict[str, tuple[int, Any, float]] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True)

    def __enter__(self) -> Leases:
        self._thread.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        self._closing.set()
        self._thread.join()
        for lease in list(self._held):
            lease.fail("it was stopped")

    def acquire(self, step_id: str) -> Lease | HeldByOther | Commit:
        """Start the step's next attempt. Returns its lease, the other owner, or the commit if the step is done.

        The attempt of a lost owner is revoked.
        """
        while True:
            attempt, end = self.store.newest(step_id)
            if end is not None and "commit" in end:
                return Commit(**end["commit"])
            if attempt and end is None:
                try:
                    owner = self.store.read(f"{attempt_key(step_id, attempt)}/lease")
                except DamagedError:
                    owner = {}  # a power loss, which the owner did not survive
                if owner and not self._is_lost(step_id, attempt, owner):
                    return HeldByOther(_describe_owner(owner))
                if owner is not None:
                    self._revoke(step_id, attempt)
                    continue
            # An attempt without a lease: the process was killed while it created it.
            number = attempt if attempt and end is None else attempt + 1
            # Another process may have this attempt by now: its mark, which names an object, must stay.
            self.store.create(_open_key(step_id, number), {})
            if self.store.create(f"{attempt_key(step_id, number)}/lease", describe_process(self.run_id)):
                lease = Lease(self, step_id, number)
                with self._lock:
                    self._held.add(lease)
                return lease

    def _revoke(self, step_id: str, attempt: int) -> None:
        by = _describe_owner(describe_process(self.run_id))
        if self.store.create(f"{attempt_key(step_id, attempt)}/end", {"revoked_by": by}):
            self.store.remove(_open_key(step_id, attempt))

    def _is_lost(self, step_id: str, attempt: int, owner: Mapping[str, Any]) -> bool:
        """Whether the owner's process ended (on this machine) or its heartbeat has not changed for `ttl` seconds."""
        if is_gone(owner):
            return True
        beat = self.store.read_if_whole(f"{attempt_key(step_id, attempt)}/heartbeat")
        now = time.monotonic()
        last = self._last_beats.get(step_id)
        if last is None or last[:2] != (attempt, beat):
            self._last_beats[step_id] = (attempt, beat, now)
            return False
        return now - last[2] > self.ttl

    def _send_heartbeats(self) -> None:
        count = 0
        while not self._closing.wait(self.ttl / BEATS):
            count += 1
            with self._lock:
                held = list(self._held)
            for lease in held:
                # A full or unreachable disk must not end the thread.
                with suppress(OSError):
                    beat = {"count": count, "at": time.time()}
                    self.store.overwrite(f"{lease._key}/heartbeat", beat, durable=False)


@dataclass(frozen=True)
class OpenAttempt:
    """An attempt that has not ended."""

    step_id: str
    owner: Mapping[str, Any] | None
    """None: the attempt has no lease, or its lease cannot be read."""
    at: float
    """Time of its last heartbeat, or of its lease, in seconds since 1970; infinity if it has neither."""
    object: str | None
    """Address of the object that it is about to commit."""
    continued: str | None
    """Id of the step whose training state it continues."""


def list_open_attempts(store: Store) -> Iterator[OpenAttempt]:
    """Yield the attempts that have not ended. Names and contents that a killed process left incomplete are ignored."""
    for name in store.list_names("open_attempts"):
        step_id, _, number = name.rpartition(".")
        if not number.isdecimal():
            continue
        # The mark before the end: an attempt removes its mark after it has ended.
        mark = store.read_if_whole(f"open_attempts/{name}") or {}
        key = attempt_key(step_id, int(number))
        if store.read_if_whole(f"{key}/end") is not None:
            store.remove(f"open_attempts/{name}")  # the process that ended it was killed before this line
            continue
        owner = store.read_if_whole(f"{key}/lease")
        beat = store.read_if_whole(f"{key}/heartbeat") or {"at": owner["since"] if owner else math.inf}
        yield OpenAttempt(step_id, owner, beat["at"], mark.get("object"), mark.get("step"))


def list_lease_holders(store: Store) -> list[tuple[str, str]]:
    """Return (step id, owner) of every attempt that has not ended. The owner may be lost."""
    held = [(attempt.step_id, attempt.owner) for attempt in list_open_attempts(store) if attempt.owner is not None]
    return [(step_id, _describe_owner(owner) + ", which is gone" * is_gone(owner)) for step_id, owner in held]


def _open_key(step_id: str, attempt: int) -> str:
    return f"open_attempts/{step_id}.{attempt}"


def find_failed_attempts(store: Store, step_id: str, attempt: int) -> list[tuple[int, str, float]]:
    """Return the attempts without a result right before `attempt`, oldest first: number, reason and seconds.

    The duration of an attempt whose process was lost is measured to its last heartbeat.
    """
    found = []
    for number in range(attempt - 1, 0, -1):
        key = attempt_key(step_id, number)
        owner, end = store.read_if_whole(f"{key}/lease"), store.read(f"{key}/end") or {}
        if owner is None or "commit" in end:
            break
        beat = store.read_if_whole(f"{key}/heartbeat") or {"at": owner["since"]}
        ended = beat["at"] if "revoked_by" in end else end.get("at", beat["at"])
        why = "its driver was lost" if "revoked_by" in end else end.get("failed", "it was stopped")
        found.append((number, why, round(ended - owner["since"], 3)))
    return found[::-1]


def describe_process(run_id: str) -> dict[str, Any]:
    """Return what identifies this process, for leases and marks of runs."""
    process = {"host": platform.node(), "machine": _machine_id(), "pid": os.getpid()}
    return {**process, "pid_started": _process_start(os.getpid()), "run": run_id, "since": time.time()}


def _describe_owner(owner: Mapping[str, Any]) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(owner["since"]))
    return f"run {owner['run']} (process {owner['pid']} on {owner['host']}, since {since})"


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Whether a process ended; on another machine, or where the system hides processes of other users, whether its last
    sign of life, at the time `at`, is older than LOST. Without a time it is not."""
    if owner["machine"] == _machine_id() and (start := _process_start(owner["pid"])) != HIDDEN:
        return bool(start != owner["pid_started"])
    return bool(time.time() - owner.get("at", math.inf) > LOST)


def _machine_id() -> str:
    """Return what makes a process id unique: host, boot and process namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot, namespace = "", ""
    return f"{platform.node()} {boot} {namespace}"


def _process_start(pid: int) -> str | None:
    """Return when a process started, in kernel ticks; None if there is none. A pid alone may be reused."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return HIDDEN
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else fields[19]
