"""Execution of single steps, from lease to commit, in threads of the driver. The jobs run on the cluster."""

import errno
import importlib.metadata
import platform
import re
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import WorkerCrashedError

from ratchet.errors import (
    InputError,
    Interrupted,
    JobError,
    LeaseLost,
    RatchetError,
    TransientError,
    describe,
)
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.execution.needs import check_step_disk
from ratchet.orchestrator.job_interface.job import Context
from ratchet.orchestrator.job_interface.placement import Machine
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Commit
from ratchet.orchestrator.store.lease import HeldByOther, Lease, Leases

POLL = 1.0
"""Seconds between checks of a step that another driver runs."""

MAX_PLACES = 3
"""Maximum number of places in the user's code that the message of a failed step names, the innermost last."""

_IN_USERS_CODE = re.compile(
    r'File "[^"\n]*/working_dir_files/[^/"\n]+/(?!ratchet/)([^"\n]+)", line (\d+), in (\S+)'
)
"""Pattern of a frame in a worker's traceback that is in the user's code: in the run's snapshot, outside Ratchet."""

PERMANENT_IN_RAY = {
    "RuntimeEnvSetupError",
    "TaskCancelledError",
    "TaskUnschedulableError",
    "ActorUnschedulableError",
}
"""Names of Ray's exceptions after which a retry cannot succeed."""

TRANSIENT = {errno.ESTALE, errno.EIO}
"""Error numbers of shared disks that may answer at the next try."""

LIBRARIES = ("ray", "torch", "transformers", "peft", "deepspeed", "pyarrow")
"""Libraries whose versions are recorded with each result. This record is not part of the fingerprint."""


@dataclass(eq=False)
class Executor:
    """Executor of single steps. Thread-safe: `execute` may be called from several threads for different steps."""

    plan: Plan
    leases: Leases
    cluster: Cluster
    run_log: RunLog
    stopping: threading.Event = field(default_factory=threading.Event)

    def execute(self, name: str, together: Sequence[str] = ()) -> Commit:
        """Run a step and return its commit, or wait for the driver that runs it. Retries after transient errors.

        together: steps whose work it does too, in its first attempt. Raises the error of the job if it is permanent or
        no retries are left, and Interrupted when the run is stopped.
        """
        retries = self.plan.steps[name].step.resources.retries
        tries = 1
        while True:
            lease = None
            try:
                acquired = self._acquired(name)
                if isinstance(acquired, Commit):
                    return acquired
                lease = acquired
                return self._attempt(name, lease, tries, together if tries == 1 else ())
            except BaseException as error:
                failed = lease is None or lease.fail(describe(error))
                if self.stopping.is_set():
                    raise Interrupted(
                        f"step {name}: stopped; give the same command again to resume"
                    ) from None
                if isinstance(error, LeaseLost) or not failed:
                    # Another driver took the step over while this process was suspended, and may have removed its
                    # output. This does not count as a try: the result of the other driver is used.
                    self.run_log.event("lease_lost", name, reason=describe(error))
                    continue
                if not is_transient(error) or tries > retries:
                    trace = getattr(error, "remote_traceback", None) or "".join(
                        traceback.format_exception(error)
                    )
                    file = self.run_log.trace_file(name)
                    file.parent.mkdir(exist_ok=True)
                    file.write_text(trace)
                    if isinstance(error, WorkerCrashedError):
                        raise JobError(
                            f"step {name}: its process was lost {tries} times (killed, out of memory); expected it to"
                            " finish; give it more memory, or lower batch_tokens"
                        ) from error
                    raise
                wait = min(60.0, 2.0 ** (tries - 1))
                self.run_log.event("retry", name, reason=describe(error), wait=wait)
                self.stopping.wait(wait)
                tries += 1

    def _acquired(self, name: str) -> Lease | Commit:
        """Wait for the lease of a step and return it, or the commit if another driver finishes the step first."""
        said = ""
        while not self.stopping.is_set():
            lease = self.leases.acquire(self.plan.steps[name].step_id)
            if not isinstance(lease, HeldByOther):
                return lease
            if lease.owner != said:
                said = lease.owner
                self.run_log.event("waiting", name, on=said)
            self.stopping.wait(POLL)
        raise Interrupted(f"step {name}: stopped while waiting for {said}")

    def _attempt(self, name: str, lease: Lease, tries: int, together: Sequence[str]) -> Commit:
        planned = self.plan.steps[name]
        step = planned.step
        step_id = planned.step_id
        started = time.time()
        inputs = self.plan.inputs(name, verified=True)
        self.plan.check_sources(name)
        machines = self.cluster.machines()
        staging = self.plan.store.staging(step_id, lease.attempt)
        check_step_disk(self.plan, name, machines)
        about = {"together": list(together)} if together else {}
        self.run_log.event("started", name, step_id=step_id, attempt=lease.attempt, **about)
        resources = step.place(machines, inputs)
        try:
            self.cluster.fit(step, resources)
        except InputError as error:  # machines were lost since the run began
            self.run_log.listener.message(f"waiting for machines: {error}")
        context = Context(
            step=name,
            step_id=step_id,
            attempt=lease.attempt,
            out=staging,
            work=self.plan.store.work(step_id),
            resources=resources,
            logs=self.plan.store.local("steps", step_id, "logs"),
            together=self._describe_others(together, machines),
            files=self.plan.store.backend,
        )
        manifest = self.cluster.run(
            step.job,
            planned.fingerprint["libraries"],
            context,
            step.config,
            inputs,
            self.plan.store,
            self.stopping,
        )
        self.plan.check_sources(name)
        record = {
            "name": name,
            "started": started,
            "seconds": time.time() - started,
            "retries": tries - 1,
            "host": platform.node(),
            "versions": versions(),
        }
        return lease.commit_object(manifest, planned.fingerprint, record)

    def _describe_others(
        self, names: Sequence[str], machines: Sequence[Machine]
    ) -> tuple[tuple[Context, Any, Any], ...]:
        """Return context, config and inputs of the steps whose work another step does."""
        found = []
        for name in names:
            planned = self.plan.steps[name]
            work = self.plan.store.work(planned.step_id)
            with suppress(RatchetError):  # a damaged input; the step itself reports it
                inputs = self.plan.inputs(name, verified=True)
                resources = planned.step.place(machines, inputs)
                # It has not begun, and so has neither an attempt nor an output folder of its own.
                context = Context(
                    name,
                    planned.step_id,
                    0,
                    work / "none",
                    work,
                    resources,
                    files=self.plan.store.backend,
                )
                found.append((context, planned.step.config, inputs))
        return tuple(found)


def is_transient(error: BaseException) -> bool:
    """Return whether a retry may succeed: after a lost worker, actor or node, a failed connection, or a timeout.

    Other errors that a job raises (wrong input, a full disk, a bug) are permanent.
    """
    if isinstance(error, RatchetError):
        return isinstance(error, TransientError)
    worker_failures = getattr(error, "worker_failures", None)
    if isinstance(worker_failures, dict) and worker_failures:
        return all(is_transient(failure) for failure in worker_failures.values())
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in TRANSIENT:
        return True
    kind = type(error)
    return kind.__module__.startswith("ray.exceptions") and kind.__name__ not in PERMANENT_IN_RAY


def describe_failure(error: BaseException) -> str:
    """Return the message of a job's error, preceded by the places in the user's code that it comes from."""
    if isinstance(error, RatchetError):
        return describe(error)
    places = _IN_USERS_CODE.findall(getattr(error, "remote_traceback", ""))[-MAX_PLACES:]
    where = ", ".join(f"{file}:{line} in {name}" for file, line, name in places)
    if where:
        return f"{where}: {describe(error)}"
    return describe(error)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that influence results."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in LIBRARIES
    }
