"""Steps from lease to commit, with jobs that run in the process of the test in place of a cluster."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.errors import UnreachableError
from ratchet.orchestrator.execution import run as run_module
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.execution.executor import Executor
from ratchet.orchestrator.execution.run import Run
from ratchet.orchestrator.job_interface import Context, Job, Resources, Result
from ratchet.orchestrator.job_interface.placement import Machine
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import RunListener, RunLog
from ratchet.orchestrator.step import Summary, step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import HeldByOther, Lease, Leases
from ratchet.orchestrator.store.manifest import Manifest


@dataclass(frozen=True)
class Nothing:
    pass


def never(context: Context, config: Nothing, inputs: Nothing) -> Result:
    raise AssertionError


class Here(Cluster):
    """A cluster that calls `work` in place of the job."""

    def __init__(self, work: Callable[[Context], None]) -> None:
        super().__init__()
        self.work, self.now = work, [Machine(1.0)]

    def start(self) -> None:
        pass

    def machines(self) -> list[Machine]:
        return self.now

    def run(
        self,
        job: Any,
        code: Any,
        context: Context,
        config: Any,
        inputs: Any,
        store: Store,
        stopping: threading.Event,
    ) -> Manifest:
        self.work(context)
        return store.add_object(context.out, Result({}))


def make_executor(tmp_path: Path, work: Callable[[Context], None], **resources: Any) -> Executor:
    store = Store.open(tmp_path)
    job = Job("work", version=1, config=Nothing, inputs=Nothing, run=never)
    plan = Plan([step("work", job, resources=Resources(**resources))], store)
    run_log = RunLog.begin(store, "toy", {})
    return Executor(plan, Leases(store, run_log.run_id), Here(work), run_log)


def take_over(store: Store, step_id: str) -> Lease:
    """Begin the next attempt, as another driver does while this one is suspended."""
    others = Leases(store, "other", ttl=-1.0)
    assert isinstance(others.acquire(step_id), HeldByOther)
    lease = others.acquire(step_id)
    assert isinstance(lease, Lease)
    return lease


@pytest.mark.slow
@pytest.mark.parametrize("error", [None, FileNotFoundError("its output was removed")])
def test_lost_lease_is_taken_again(tmp_path: Path, error: Exception | None) -> None:
    def work(context: Context) -> None:
        if context.attempt < 5:
            take_over(executor.plan.store, context.step_id).fail("stopped")
            if error:
                raise error

    executor = make_executor(tmp_path, work, retries=0)
    assert executor.execute("work").attempt == 5
    assert [event["event"] for event in executor.run_log.events()] == [
        "started",
        "lease_lost",
    ] * 2 + ["started"]


@pytest.mark.parametrize(
    "error",
    [
        UnreachableError("s3://bucket: no answer"),
        OSError(errno.ESTALE, "Stale file handle", "heartbeat"),
        OSError(errno.EIO, "Input/output error"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lease_that_cannot_be_taken_at_once_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    executor = make_executor(tmp_path, lambda context: None, retries=1)
    acquire = executor.leases.acquire
    errors = [error]

    def acquire_late(step_id: str) -> Any:
        if errors:
            raise errors.pop()
        return acquire(step_id)

    monkeypatch.setattr(executor.leases, "acquire", acquire_late)
    assert executor.execute("work").attempt == 1
    errors = [error, error]
    executor = make_executor(tmp_path / "again", lambda context: None, retries=1)
    monkeypatch.setattr(executor.leases, "acquire", acquire_late)
    with pytest.raises(type(error)):
        executor.execute("work")


@pytest.mark.slow
def test_attempt_removes_earlier_output(tmp_path: Path) -> None:
    store, found = Store.open(tmp_path), list[int]()

    def work(context: Context) -> None:
        (context.out / "half").write_text("half")
        found.append(len(list(context.out.parent.iterdir())))
        if context.attempt == 1:
            raise ConnectionError
        if context.attempt == 2:
            taken = take_over(store, context.step_id)
            later = store.staging(context.step_id, taken.attempt)
            assert not context.out.exists()
            store.staging(context.step_id, context.attempt)  # of this process, which was suspended
            assert later.exists()
            taken.fail("stopped")

    assert make_executor(tmp_path, work, retries=1).execute("work").attempt == 4
    assert found == [1, 1, 1]


def test_a_retry_needs_the_gpus_that_the_cluster_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus, said = list[float | None](), list[str]()

    def work(context: Context) -> None:
        gpus.append(context.resources.gpus)
        if context.attempt == 1:
            executor.cluster.now = [Machine(8.0)]  # type: ignore[attr-defined]
            raise ConnectionError

    executor = make_executor(tmp_path, work, retries=1)
    listener = RunListener()
    monkeypatch.setattr(listener, "message", said.append)
    executor.cluster.now = [Machine(8.0), Machine(8.0, 1.0)]  # type: ignore[attr-defined]
    recipe: Any = SimpleNamespace(name="toy")
    Run(
        recipe, Summary(()), executor.plan, executor.cluster, executor.run_log, listener
    )._start_cluster()
    assert executor.execute("work").attempt == 2
    assert gpus == [1.0, 1.0]
    assert said[-1:] == [
        "waiting for machines: step work: 1 workers of 1 CPUs and 1 GPUs given; expected at most the 0 that fit on the"
        " cluster at its largest (machines: 1 of 8 CPUs and 0 GPUs); lower workers, cpus, gpus or memory with --set"
        " work.NAME=..., or allow fewer workers with --set work.min_workers=..."
    ]


def test_a_run_that_waits_for_machines_is_stopped_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MACHINES_TIMEOUT", 2.0)
    executor = make_executor(tmp_path, lambda context: None, cpus=4.0)
    executor.cluster.address = "another-machine:6379"  # whose machines may still come
    recipe: Any = SimpleNamespace(name="toy")
    run = Run(recipe, Summary(()), executor.plan, executor.cluster, executor.run_log, RunListener())
    run.stop.set()
    run.execute()
    assert run.word == "interrupted"
