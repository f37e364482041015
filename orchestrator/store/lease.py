"""Leases: who works on a step. Attempts of a step are numbered, and each attempt ends in exactly one way.

docs/architecture.md describes the files. An attempt begins only after the previous attempt ended without a result. The
history of a step is therefore linear, and the end of its newest attempt is authoritative. An owner that was suspended
and wakes up right before its commit finds that its attempt has ended, and cannot commit. The only requirement is
exclusive creation: no locks, no compare-and-swap, no synchronized clocks.
"""

import math
import os
import platform
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratchet.errors import DamagedError, LeaseLost
from ratchet.orchestrator.job_interface.job import Result
from ratchet.orchestrator.store import Commit, Store
from ratchet.orchestrator.store.backend import attempt_key
from ratchet.orchestrator.store.manifest import Manifest

TTL = 60.0
"""Seconds without a heartbeat after which an owner on another machine counts as lost."""

BEATS = 12
"""Heartbeats per TTL. The duration of a lost attempt is known with this resolution, TTL / BEATS."""

LOST = 86_400.0
"""Seconds without a heartbeat after which `gc` counts a process on another machine as lost."""

HIDDEN = "running"
"""Start time of a running process whose start the system hides."""


@dataclass(frozen=True)
class HeldByOther:
    """Another process works on the step. `owner` describes that process."""

    owner: str


@dataclass(frozen=True)
class Lease:
    """The right of this process to commit one attempt of a step, until the attempt ends."""

    leases: "Leases"
    step_id: str
    attempt: int

    def commit(
        self,
        staging: Path,
        result: Result,
        fingerprint: Mapping[str, Any],
        record: Mapping[str, Any],
    ) -> Commit:
        """Make a staging folder the step's result: `Store.add_object`, then `commit_object`."""
        manifest = self.leases.store.add_object(staging, result)
        return self.commit_object(manifest, fingerprint, record)

    def commit_object(
        self, manifest: Manifest, fingerprint: Mapping[str, Any], record: Mapping[str, Any]
    ) -> Commit:
        """Make an object the step's result and end the attempt. The result becomes visible atomically.

        manifest: from `Store.add_object`. Raises LeaseLost if another process ended or removed the attempt, or if `gc`
        removed the object while this process was suspended, and OSError if the disk is full. After each of these
        errors, no result is visible.
        """
        store = self.leases.store
        commit = Commit(self.step_id, manifest.digest, self.attempt, fingerprint, record)
        if not self._create_end({"commit": asdict(commit)}):
            owner = (store.read(f"{self._key}/end") or {}).get("revoked_by", "another process")
            raise LeaseLost(
                f"step {self.step_id[:12]}, attempt {self.attempt}: taken over by {owner}"
            )
        store.keep_object(manifest.digest)  # from now on `gc` sees that it is young
        if not store.backend.has_object(manifest.digest):
            store.withdraw(commit)
            raise LeaseLost(
                f"step {self.step_id[:12]}, attempt {self.attempt}: gc removed the output before the commit, since this"
                " process was suspended for longer than the grace period"
            )
        store.clear(self.step_id)
        return commit

    def fail(self, reason: str) -> bool:
        """End the attempt without a result. Returns False if another process ended it. If the end cannot be written,
        the attempt ends when its heartbeat expires."""
        with suppress(OSError):
            return self._create_end({"failed": reason})
        return True

    @property
    def _key(self) -> str:
        return attempt_key(self.step_id, self.attempt)

    def _create_end(self, how: Mapping[str, Any]) -> bool:
        try:
            return self.leases.store.create(f"{self._key}/end", dict(how))
        finally:
            with self.leases._lock:
                self.leases._held.discard(self)  # ends its heartbeat


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

    def __enter__(self) -> "Leases":
        self._thread.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        self._closing.set()
        self._thread.join()
        for lease in list(self._held):
            lease.fail("it was stopped")

    def acquire(self, step_id: str) -> Lease | HeldByOther | Commit:
        """Start the step's next attempt and return its lease. Return HeldByOther if another process works on the step,
        and the commit if the step is done. If the owner of the newest attempt is lost, the attempt is revoked.
        """
        while True:
            attempt, end = self.store.newest(step_id)
            if end is not None and "commit" in end:
                return Commit.read(end["commit"])
            if attempt and end is None:
                try:
                    owner = self.store.read(f"{attempt_key(step_id, attempt)}/lease")
                except DamagedError:
                    owner = {}  # cut off by a power loss, which ended the owner too
                if owner and not self._is_lost(step_id, attempt, owner):
                    return HeldByOther(_describe_owner(owner))
                if owner is not None:
                    by = _describe_owner(describe_process(self.run_id))
                    self.store.create(f"{attempt_key(step_id, attempt)}/end", {"revoked_by": by})
                    continue
            # Reuse an attempt without a lease: its process was killed while it created the attempt.
            number = attempt if attempt and end is None else attempt + 1
            if self.store.create(
                f"{attempt_key(step_id, number)}/lease", describe_process(self.run_id)
            ):
                lease = Lease(self, step_id, number)
                with self._lock:
                    self._held.add(lease)
                return lease

    def _is_lost(self, step_id: str, attempt: int, owner: Mapping[str, Any]) -> bool:
        """Return whether the owner's process ended, or its heartbeat has not changed for `ttl` seconds."""
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
                    self.store.overwrite(f"{lease._key}/heartbeat", {"count": count}, durable=False)


def describe_process(run_id: str) -> dict[str, Any]:
    """Return the fields that identify this process in leases and marks of runs."""
    process = {"host": platform.node(), "machine": _machine_id(), "pid": os.getpid()}
    return {
        **process,
        "pid_started": _process_start(os.getpid()),
        "run": run_id,
        "since": time.time(),
    }


def _describe_owner(owner: Mapping[str, Any]) -> str:
    since = time.strftime("%H:%M:%S", time.localtime(owner["since"]))
    return f"run {owner['run']} (process {owner['pid']} on {owner['host']}, since {since})"


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Return whether a process ended. For a process on another machine, or one that the system hides: whether its last
    heartbeat, `at`, is older than LOST; False without `at`."""
    if owner["machine"] == _machine_id() and (start := _process_start(owner["pid"])) != HIDDEN:
        return bool(start != owner["pid_started"])
    return bool(time.time() - owner.get("at", math.inf) > LOST)


def _machine_id() -> str:
    """Return an id of the host, its boot and the process namespace, within which a process id is unique."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = ""
        namespace = ""
    return f"{platform.node()} {boot} {namespace}"


def _process_start(pid: int) -> str | None:
    """Return when a process started, in kernel ticks, since process ids are reused. None: no such process."""
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
    if fields[0] == "Z":
        return None
    return fields[19]


INTERVAL = 600.0
"""Seconds between heartbeats."""


class OpenRun:
    """The mark of this driver. Use as a context manager around planning and execution."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.key = f"open_runs/{uuid.uuid4().hex}"
        self.folder: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="open run", daemon=True)

    def __enter__(self) -> "OpenRun":
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *of_error: object) -> None:
        self._closing.set()
        self._thread.join()
        self.store.remove(self.key)

    def set_folder(self, folder: Path) -> None:
        """Record the folder of the run, or of the sweep, whose plans name the steps in use."""
        self.folder = folder.relative_to(self.store.root).as_posix()
        self._write()

    def _write(self) -> None:
        self.store.overwrite(self.key, {**describe_process(self.folder or ""), "at": time.time()})

    def _renew(self) -> None:
        while not self._closing.wait(INTERVAL):
            with suppress(OSError):
                self._write()


def list_open_runs(store: Store) -> list[dict[str, Any]]:
    """Return the marks of drivers that may be running. Their `run` is the folder of the run in the store, or empty.

    Marks that drivers left behind when they were killed are removed.
    """
    found = []
    for name, mark in store.read_all("open_runs"):
        if is_gone(mark):
            store.remove(f"open_runs/{name}")
        else:
            found.append(mark)
    return found
