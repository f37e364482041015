"""One step, from the lease to the commit. Runs in a thread of the driver; the work itself runs on the cluster."""

from __future__ import annotations

import importlib.metadata
import platform
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

from jobs.job import Context
from jobs.trail import losses
from orchestrator.cluster import Cluster
from orchestrator.errors import Fenced, Interrupted
from orchestrator.failures import backoff, may_pass, sentence
from orchestrator.journal import Journal
from orchestrator.longer import Family
from orchestrator.plan import Plan
from orchestrator.store import Commit, Store
from orchestrator.store.lease import Held, Lease, Leases, fruitless
from orchestrator.watch import Watcher

POLL = 1.0
"""Seconds between looks at a step that another driver holds."""

LIBRARIES = ("ray", "torch", "transformers", "peft", "deepspeed", "pyarrow")
"""Kept with each result, for provenance; never identity."""


class Executor:
    """Carries out single steps. Thread-safe: `carry_out` is called from several threads for different steps."""

    def __init__(self, plan: Plan, leases: Leases, cluster: Cluster, journal: Journal, view: Watcher) -> None:
        self.plan = plan
        self.store: Store = plan.store
        self.leases = leases
        self.cluster = cluster
        self.journal = journal
        self.view = view
        self.stopping = threading.Event()

    def carry_out(self, name: str) -> Commit:
        """Gets the step done by us or by whoever holds it, trying again after what may pass.

        Raises what the job raised where trying again cannot help, and Interrupted when the run is being stopped.
        """
        retries = self.plan.steps[name].step.resources.retries
        for tries in range(1, retries + 2):
            lease = self._acquired(name)
            if isinstance(lease, Commit):
                return lease
            try:
                return self._attempt(name, lease, tries)
            except Fenced as error:
                # Another driver took the step over while this process was stopped: its result is as good as ours.
                self.journal.event("fenced", name, reason=str(error))
            except BaseException as error:
                lease.fail(sentence(error))
                if self.stopping.is_set():
                    raise Interrupted(f"step {name}: stopped; give the same command again to go on") from None
                if not may_pass(error) or tries > retries:
                    trace = getattr(error, "remote_traceback", None) or "".join(traceback.format_exception(error))
                    self.journal.error(name, trace)
                    raise
                wait = backoff(tries)
                self.journal.event("retry", name, reason=sentence(error), wait=wait)
                self.view.retrying(name, sentence(error).splitlines()[0], wait)
                self.stopping.wait(wait)
        raise Interrupted(f"step {name}: taken over by another driver each time; give the same command again")

    def _acquired(self, name: str) -> Lease | Commit:
        """The lease, or the result if another driver commits it while we wait."""
        step_id = self.plan.steps[name].step_id
        assert step_id is not None
        said = ""
        while not self.stopping.is_set():
            lease = self.leases.acquire(step_id)
            if not isinstance(lease, Held):
                return lease
            if lease.owner != said:
                said = lease.owner
                self.journal.event("waiting", name, on=said)
                self.view.waiting(name, said)
            self.stopping.wait(POLL)
        raise Interrupted(f"step {name}: stopped while waiting for {said}")

    def _attempt(self, name: str, lease: Lease, tries: int) -> Commit:
        planned = self.plan.steps[name]
        step, step_id = planned.step, planned.step_id
        assert step_id is not None
        assert planned.identity is not None
        started = time.time()
        inputs = self.plan.inputs(name, verified=True)
        self.plan.sources_unchanged(name)
        self.view.started(name, lease.epoch)
        self.journal.event("started", name, step_id=step_id, attempt=lease.epoch)
        staging = self.store.staging(step_id, lease.epoch)
        family, work = Family.of(planned), self.store.work(step_id)
        lost = [_lost(ended, whole=not any(work.iterdir())) for ended in fruitless(self.store, step_id, lease.epoch)]
        context = Context(
            step=name,
            step_id=step_id,
            attempt=lease.epoch,
            out=staging,
            work=work,
            resources=self.cluster.resolved(step.resources),
            logs=self.store.logs(step_id),
            state=work / "state" if family else None,
            earlier=family.earlier(self.store) if family else None,
        )
        result = self.cluster.run(step.job, self.plan.code[step.job], context, step.config, inputs, self.stopping)
        self.plan.sources_unchanged(name)
        record = {
            "name": name,
            "started": started,
            "seconds": time.time() - started,
            "continued": context.earlier is not None,
            "retries": tries - 1,
            "lost": lost + losses(work),
            "host": platform.node(),
            "versions": versions(),
        }
        if family:
            family.keep(self.store, step_id, work / "state")
        return lease.commit(staging, result, planned.identity, record)


def _lost(ended: Mapping[str, Any], whole: bool) -> dict[str, Any]:
    """An attempt that came to nothing, as `jobs.trail` notes losses: all of it is done again where it left nothing."""
    what = f"attempt {ended['attempt']}: {ended['why'].splitlines()[0]}"
    return {"what": what, "amount": None, "unit": "", "seconds": ended["seconds"] if whole else None}


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide bytes."""
    found: dict[str, Any] = {"python": platform.python_version()}
    for library in LIBRARIES:
        found[library] = importlib.metadata.version(library)
    return found
