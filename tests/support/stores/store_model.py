"""A model of the store for Hypothesis: three actors run, repair and collect garbage. Each stops before every operation
on the store, until Hypothesis resumes or kills it, or lets the operation fail.

The store is the real one, in a folder, or in a bucket in memory with a local folder per actor. An actor is a thread
that has a process id of its own.
"""

from __future__ import annotations

import errno
import itertools
import os
import secrets
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from obstore.store import MemoryStore
from suspended_actors import Actor, GatedObstore, InThread, Killed, here, hook_file_operations

from ratchet.errors import DamagedError, LeaseLost, StoreError, UnreachableError
from ratchet.orchestrator import gc
from ratchet.orchestrator.job_interface import Result, digests
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Commit, Store, bucket, lease, manifest
from ratchet.orchestrator.store.bucket import Bucket
from ratchet.orchestrator.store.lease import HeldByOther, Leases, OpenRun

CONTENT = {"a": "one", "b": "two", "c": "one", "d": "six"}
"""Step id -> what its job writes. The results of a and c have the same address."""

PLANS = [("a",), ("b",), ("d",), ("a", "d"), ("c", "b"), ("a", "b", "c")]
"""Steps of a run; each reads the one before it."""

ALL = 1_000_000
"""More operations than any actor does."""

ACTOR = st.integers(0, 2)
OPERATIONS = st.one_of(
    st.integers(1, 50),
    st.integers(1, 150),
    st.just(ALL),
    # Up to what decides.
    st.sampled_from(
        [
            "/end",
            "/lease",
            "/MANIFEST.json",
            "os.rename",
            "os.utime",
            "objects",
            "sweeps",
            "plan.json",
        ]
    ),
)

MEMORY = Path("/dev/shm")
"""A folder in memory, where syncing costs nothing."""

GRACE = 0.03
"""Grace period in seconds: more than the resolution of a file system's clock, and less than a run takes."""
FAULTS = {
    False: [errno.EIO, errno.ENOSPC, errno.ESTALE, errno.EACCES, "short"],
    True: [errno.EIO, "after"],
}
"""Whether the store is in a bucket -> how an operation may fail; see `Actor.fault`."""
POLLS = 3
"""Looks at a lease that another actor holds before a driver stops."""


class StoreModel(RuleBasedStateMachine):
    """Rules of the actors and of their surroundings, and what must hold."""

    in_bucket = False

    def __init__(self) -> None:
        super().__init__()
        hook_file_operations()
        self.folder = Path(
            tempfile.mkdtemp(prefix="store-model-", dir=MEMORY if MEMORY.is_dir() else None)
        )
        self.patch = pytest.MonkeyPatch()
        self.actors: list[Actor | None] = [None] * 3
        self.alive: set[int] = set()
        self.processes, self.tokens = itertools.count(10**7), itertools.count()
        self.void: set[int] = set()
        """Tokens of results that nobody may find any more."""
        self.damaged: set[str] = set()
        """Addresses that were damaged at some time."""
        self.withdrawn: set[str] = set()
        """Steps whose result a repair withdrew."""
        self.pinned: list[RunLog] = []
        self.collecting: set[int] = set()
        """Actors that collect."""
        self._replace_clocks_and_names()
        self.stores = self._open_stores()

    def _replace_clocks_and_names(self) -> None:
        real_pid, numbers = os.getpid, itertools.count(1)

        def find_pid() -> int:
            actor = getattr(here, "actor", None)
            return real_pid() if actor is None else actor.process

        self.patch.setattr(os, "getpid", find_pid)
        self.patch.setattr(
            lease, "_process_start", lambda pid: "started" if pid in self.alive else None
        )
        self.patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers) << 104))
        self.patch.setattr(secrets, "token_hex", lambda size: f"{next(numbers):08x}")
        for module in (bucket, digests, gc, manifest):
            self.patch.setattr(module, "ThreadPoolExecutor", InThread)
        self.patch.setattr(bucket, "obstore", GatedObstore())
        self.patch.setattr(gc, "MIN_GRACE", GRACE)
        self.patch.setattr(gc, "print_clean", lambda text: None)

    def _open_stores(self) -> list[Store]:
        if not self.in_bucket:
            return [Store.open(self.folder) for _ in self.actors]
        found = []
        self.control = MemoryStore()
        for machine in range(len(self.actors)):
            self.patch.setenv("RATCHET_CACHE", str(self.folder / str(machine)))
            store = Store.open("memory:///store")
            assert isinstance(store.backend, Bucket)
            store.backend.control = self.control
            found.append(store)
        return found

    # The rules. What begins goes on at once, so that few draws make much happen.

    @initialize(plans=st.lists(st.sampled_from(PLANS), max_size=1))
    def prepare(self, plans: list[tuple[str, ...]]) -> None:
        """Begin with old results."""
        for steps in plans:
            self.run(0, ALL, steps, patient=True, pinned=False, repair=False)

    @rule(
        number=ACTOR,
        operations=OPERATIONS,
        steps=st.sampled_from(PLANS),
        patient=st.booleans(),
        pinned=st.booleans(),
        repair=st.booleans(),
    )
    def run(
        self,
        number: int,
        operations: int | str,
        steps: tuple[str, ...],
        patient: bool,
        pinned: bool,
        repair: bool,
    ) -> None:
        def program(actor: Actor) -> None:
            self._drive(actor, steps, patient, pinned, repair)

        self._start(number, program, f"run of {steps}")
        self.advance(number, operations)

    @rule(number=ACTOR, operations=OPERATIONS)
    def collect(self, number: int, operations: int | str) -> None:
        def program(actor: Actor) -> None:
            gc.remove_garbage(gc.find_garbage(actor.store, keep=0, grace=GRACE))

        time.sleep(GRACE)  # so that something is older than the grace period
        if self._start(number, program, "gc"):
            self.collecting.add(number)
        self.advance(number, operations)

    @rule(number=ACTOR, operations=OPERATIONS, draw=st.integers(0, 99))
    def fail(self, number: int, operations: int | str, draw: int) -> None:
        """Let the next operation of an actor fail."""
        if (actor := self.actors[number]) is not None:
            kinds = FAULTS[self.in_bucket]
            actor.fault = kinds[draw % len(kinds)]
            self.advance(number, operations)

    @rule(number=ACTOR, operations=OPERATIONS)
    def advance(self, number: int, operations: int | str) -> None:
        if (actor := self.actors[number]) is not None:
            actor.advance(operations)
            self._check(number, actor)

    @rule(number=ACTOR)
    def kill(self, number: int) -> None:
        if (actor := self.actors[number]) is not None:
            actor.kill()
            self._check(number, actor)

    @precondition(lambda self: not self.damaged)
    @rule(step=st.sampled_from(sorted(CONTENT)))
    def damage(self, step: str) -> None:
        """Change a file of a result as a bad disk does: its size stays."""
        commit = self.stores[0].lookup(step)
        if commit is None:
            return
        key, text = f"objects/{commit.manifest}/text.txt", b"bad"
        if self.in_bucket:
            obstore.put(self.control, key, text)
        else:
            path = self.folder / key
            if not path.exists():
                return
            path.write_bytes(text)
        self.damaged.add(commit.manifest)

    def teardown(self) -> None:
        try:
            for number, actor in enumerate(self.actors):
                if actor is not None:
                    actor.kill()
                    self._check(number, actor)
            self._check_kept_results()
        finally:
            self.patch.undo()
            shutil.rmtree(self.folder, ignore_errors=True)

    # What the actors do: what a run does with the store, in the same order.

    def _start(self, number: int, program: Callable[[Actor], None], what: str) -> bool:
        if self.actors[number] is not None:
            return False
        process = next(self.processes)
        self.alive.add(process)
        self.actors[number] = Actor(process, self.stores[number], program, what)
        return True

    def _drive(
        self, actor: Actor, steps: tuple[str, ...], patient: bool, pinned: bool, repair: bool
    ) -> None:
        store, commits = actor.store, dict[str, Commit]()
        with OpenRun(store) as open_run:
            for step in steps:
                if (commit := self._look_up(store, step, repair)) is None:
                    break
                commits[step] = commit
            run_log = RunLog.begin(store, "toy", {})
            open_run.set_folder(run_log.folder)
            if pinned:
                (run_log.folder / "pinned").touch()
            self._write_plan(store, run_log, steps, commits)
            # In a bucket no use is recorded: a collection that began before may remove what this run found.
            if pinned and not (self.in_bucket and self.collecting):
                self.pinned.append(run_log)
            leases = Leases(store, run_log.run_id, 1e9 if patient else 0.0)
            for before, step in zip((None, *steps), steps, strict=False):
                if (
                    step not in commits
                    and (found := self._look_up(store, step, repair)) is not None
                ):
                    commits[step] = found
                    self._write_plan(store, run_log, steps, commits)
                while step not in commits:
                    commit = self._compute(
                        actor, leases, step, commits.get(before) if before else None
                    )
                    if commit is None:
                        return
                    commits[step] = commit
                    self._write_plan(store, run_log, steps, commits)
            self._read(store, commits[steps[-1]])
            run_log.event("end", failures={}, interrupted=False)
            store.backend.send(run_log.folder)

    def _look_up(self, store: Store, step: str, repair: bool) -> Commit | None:
        void = set(self.void)
        commit = store.use(step)
        if commit is None:
            return None
        assert commit.record["token"] not in void, (
            f"step {step}: a result that was withdrawn or fenced off is back"
        )
        try:
            store.verified(commit.manifest, full=repair)
        except DamagedError:
            # As in `Plan`: what `gc` has removed since it was found is computed again.
            is_gone = not store.backend.has_object(commit.manifest)
            if not is_gone and commit.manifest not in self.damaged:
                raise
            if not repair and not is_gone:
                raise Killed from None  # the command ends with the error
            self.withdrawn.add(step)
            store.withdraw(commit)
            self.void.add(commit.record["token"])
            return None
        return commit

    def _write_plan(
        self, store: Store, run_log: RunLog, steps: tuple[str, ...], commits: dict[str, Commit]
    ) -> None:
        known = list(itertools.takewhile(lambda step: step in commits, steps))
        known += steps[
            len(known) : len(known) + 1
        ]  # the id of the next step follows from its inputs
        plan = [
            {
                "name": step,
                "step_id": step if step in known else None,
                "object": commits[step].manifest if step in commits else None,
            }
            for step in steps
        ]
        run_log.write("plan.json", {"steps": plan})
        store.backend.send(run_log.folder)

    def _compute(
        self, actor: Actor, leases: Leases, step: str, before: Commit | None
    ) -> Commit | None:
        """Return the result of a step, of this actor or of another; None if the run ends without."""
        store = actor.store
        for _ in range(POLLS):
            void = set(self.void)
            held = leases.acquire(step)
            if isinstance(held, Commit):
                assert held.record["token"] not in void, f"step {step}: a void result is back"
                return held
            if isinstance(held, HeldByOther):
                continue
            token = next(self.tokens)
            try:
                if before is not None:
                    self._read(store, before)
                staging = store.staging(step, held.attempt)
                (staging / "text.txt").write_text(CONTENT[step])
                return held.commit(staging, Result({}), {}, {"name": step, "token": token})
            except LeaseLost:
                self.void.add(token)
            except UnreachableError:
                # A collection removes an equal object while it is uploaded: the attempt fails, and is made again.
                if not self.collecting and not actor.has_failed:
                    raise
                held.fail("its output is not whole after the upload")
            except FileNotFoundError:  # another driver took the step over, and removed the output
                assert not held.fail("its output is gone")
                return None
        return None

    def _read(self, store: Store, commit: Commit) -> None:
        """Read an input as a job does."""
        try:
            text = (store.path(commit.manifest, full=True) / "text.txt").read_text()
        except DamagedError:
            # In a bucket no use is recorded: a collection that began before this run may remove what it found.
            is_gone = self.in_bucket and not store.backend.has_object(commit.manifest)
            if not is_gone and commit.manifest not in self.damaged:
                raise
            raise Killed from None
        assert text == CONTENT[commit.step_id] or commit.manifest in self.damaged, (
            f"{commit.step_id}: {text}"
        )

    # What must hold.

    def _check(self, number: int, actor: Actor) -> None:
        is_damage = isinstance(actor.error, DamagedError)
        if actor.has_failed and isinstance(actor.error, OSError | StoreError) and not is_damage:
            actor.error = None  # the command ends with it, and may be given again
        if actor.error is not None:
            raise AssertionError(f"{actor.what}: {actor.error!r}") from actor.error
        if actor.ended:
            self.alive.discard(actor.process)
            self.collecting.discard(number)
            self.actors[number] = None

    def _check_kept_results(self) -> None:
        """What pinned runs name is there, whole, and its bytes are right."""
        store = self.stores[0]
        kept = set()
        for run_log in self.pinned:
            kept |= {step["step_id"] for step in run_log.steps() if step["object"]}
        for step in sorted(kept - self.withdrawn):
            commit = store.lookup(step)
            assert commit is not None, f"step {step}: the result of a pinned run is gone"
            assert commit.record["token"] not in self.void, f"step {step}: a void result"
            if commit.manifest not in self.damaged:
                text = (store.path(commit.manifest, full=True) / "text.txt").read_text()
                assert text == CONTENT[step], f"step {step}: {text}"


class BucketModel(StoreModel):
    """The same with a bucket; each actor is a machine with a local folder of its own."""

    in_bucket = True
