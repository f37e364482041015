"""Steps from lease to commit, with jobs that run in the process of the test in place of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.execution.executor import Executor
from ratchet.orchestrator.execution.run_listener import RunListener
from ratchet.orchestrator.job_interface import Context, Job, Resources, Result
from ratchet.orchestrator.job_interface.placement import Machine
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import HeldByOther, Lease, Leases


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

    def machines(self) -> list[Machine]:
        return self.now

    def run(self, job: Any, code: Any, context: Context, config: Any, inputs: Any, stopping: threading.Event) -> Result:
        self.work(context)
        return Result({})


def make_executor(tmp_path: Path, work: Callable[[Context], None], **resources: Any) -> Executor:
    store = Store.open(tmp_path)
    job = Job("work", version=1, config=Nothing, inputs=Nothing, run=never)
    plan = Plan([step("work", job, resources=Resources(**resources))], store)
    run_log = RunLog.begin(store, "toy", {})
    return Executor(plan, Leases(store, run_log.run_id), Here(work), run_log, RunListener())


def take_over(store: Store, step_id: str) -> Lease:
    """Begin the next attempt, as another driver does while this one is suspended."""
    others = Leases(store, "other", ttl=-1.0)
    assert isinstance(others.acquire(step_id), HeldByOther)
    lease = others.acquire(step_id)
    assert isinstance(lease, Lease)
    return lease


@pytest.mark.parametrize("error", [None, FileNotFoundError("its output was removed")])
def test_who_lost_its_lease_goes_on_when_the_other_driver_ends_without_a_result(
    tmp_path: Path, error: Exception | None
) -> None:
    def work(context: Context) -> None:
        if context.attempt < 5:
            take_over(executor.plan.store, context.step_id).release()
            if error:
                raise error

    executor = make_executor(tmp_path, work, retries=0)
    assert executor.execute("work").attempt == 5
    assert [event["event"] for event in executor.run_log.events()] == ["started", "lease_lost"] * 2 + ["started"]


def test_an_attempt_removes_the_output_of_those_before_it_and_of_none_after_it(tmp_path: Path) -> None:
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
            taken.release()

    assert make_executor(tmp_path, work, retries=1).execute("work").attempt == 4
    assert found == [1, 1, 1]
