"""The overhead of the orchestrator: the time of planning, of committing, and of a step that does nothing.

python -m benchmarks.orchestrator.overhead
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.execution.cluster import Cluster
from ratchet.orchestrator.execution.live_view import LiveView
from ratchet.orchestrator.execution.run import Run
from ratchet.orchestrator.fingerprint import build_fingerprint
from ratchet.orchestrator.job_interface import Context, Job, Result
from ratchet.orchestrator.job_interface.code import read_code
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.recipe import Recipe
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import Row, Step, Summary, list_goals, reachable, step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import Lease, Leases

ROUNDS = 5


@dataclass(frozen=True)
class Config:
    number: int = 0


@dataclass(frozen=True)
class Inputs:
    before: Path | None = None


def nothing(context: Context, config: Config, inputs: Inputs) -> Result:
    (context.out / "number.txt").write_text(str(config.number))
    return Result({"number": config.number})


NOTHING = Job("nothing", version=1, config=Config, inputs=Inputs, run=nothing)


def chain(length: int) -> list[Step]:
    """Steps that each need the one before."""
    steps: list[Step] = []
    for number in range(length):
        steps.append(
            step(f"step{number}", NOTHING, number=number, before=steps[-1] if steps else None)
        )
    return steps


def planning(length: int) -> None:
    """A chain that is all done: every step's fingerprint worked out, its result looked up and its files looked at."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder)
        steps = chain(length)
        with Leases(store, "bench") as leases:
            before = None
            for one in steps:
                document = build_fingerprint(
                    NOTHING, read_code(NOTHING), one.config, {"before": before}
                )
                lease = leases.acquire(digest(document))
                assert isinstance(lease, Lease)
                staging = store.staging(lease.step_id, 1)
                (staging / "number.txt").write_text(str(one.config.number))
                commit = lease.commit(
                    staging, Result({}), document, {"seconds": 0.0, "name": one.name}
                )
                before = store.manifest(commit.manifest).part_digest(None)
        seconds = timed(lambda: Plan(reachable(steps[-1:]), store))
        assert not Plan(steps, store).missing()
    print(
        f"plan of {length} steps, all done: {seconds:.2f} s ({seconds / length * 1e6:.0f} us a step)"
    )


def committing(files: int) -> None:
    """Hashing, syncing to disk and publishing an artifact of many small files."""
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder)
        with Leases(store, "bench") as leases:
            for round_ in range(ROUNDS):
                lease = leases.acquire(f"{round_:064d}")
                assert isinstance(lease, Lease)
                staging = store.staging(lease.step_id, 1)
                for number in range(files):
                    (staging / f"{number}.txt").write_text(f"{round_} {number}" * 100)
                start = time.perf_counter()
                lease.commit(staging, Result({}), {}, {})
                taken.append(time.perf_counter() - start)
    print(
        f"commit of {files} files: {statistics.median(taken):.3f} s (every file and folder synced to disk)"
    )


def running(length: int) -> None:
    """A chain of steps that do nothing, on a Ray that is up: what a step costs besides its work."""
    cluster = Cluster()
    cluster.start()
    taken = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            store = Store.open(folder)
            steps = chain(length)
            summary = Summary([Row("last", {"number": steps[-1].metric("number")})])
            recipe = Recipe("bench", lambda summary=summary: summary)
            plan = Plan(reachable(list_goals(summary)), store)
            run_log = RunLog.begin(store, "bench", {})
            start = time.perf_counter()
            with LiveView(len(plan.steps), "bench", run_log.run_id) as view:
                run = Run(recipe, summary, plan, cluster, run_log, view)
                run.execute()
            taken.append((time.perf_counter() - start) / length)
            assert run.word == "finished"
    cluster.close()
    print(
        f"a step that does nothing: {statistics.median(taken) * 1e3:.0f} ms (lease, Ray task, commit, run_log)"
    )


def timed(work: Callable[[], object]) -> float:
    """Median seconds over some rounds."""
    taken = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    planning(2000)
    committing(1000)
    running(20)
