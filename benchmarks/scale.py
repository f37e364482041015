"""The limit of scaling: a finished run's steps and their seconds, scheduled on 1 to 256 simulated workers.

    python -m benchmarks.scale [--store .ratchet] [--startup 8] [--shards 0]

The schedule is that of orchestrator/execution/schedule.py. Steps and seconds are those of the newest run that finished.
A step that is dealt to workers costs `startup` seconds (Ray's processes, imports, the model's loading;
if not given, what the smallest such step took) and the rest divided by its workers, of which it has no more than pieces
of work: shards for Ray Data, rows of a batch for training. Nothing grows with the workers here: what gradients and
shared disks cost is not simulated, so this is what a cluster can at best do. `--shards` pretends that every sharded
step had so many shards, as with a larger corpus.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ratchet.orchestrator.execution.schedule import Demand, Status, finished, to_start
from ratchet.orchestrator.run_log import RunLog, list_run_logs
from ratchet.orchestrator.store import Store

SHARDED = {"embed", "mine", "rerank", "generate", "evaluate_papers", "teacher_logprobs"}
TRAINED = {"finetune_embedder", "finetune_reranker", "finetune_embedder_pairs", "sft"}
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Cost:
    """Costs of one step: seconds that do not divide, seconds that do, and into how many pieces."""

    fixed: float
    divided: float = 0.0
    pieces: int = 1

    def on(self, workers: int) -> float:
        """Pieces are dealt whole: three pieces on two workers take as long as two."""
        return self.fixed + self.divided * ceil(self.pieces / min(workers, self.pieces)) / self.pieces


@dataclass(frozen=True)
class Replay:
    seconds: float
    path: tuple[str, ...]
    """The steps that no other worker could have shortened: each began when the one before it ended."""


def replay(parents: Mapping[str, Sequence[str]], costs: Mapping[str, Cost], workers: int) -> Replay:
    """The run on so many workers; steps in the recipe's order, which has parents before children."""
    order = list(parents)
    demand = {name: Demand(min(workers, costs[name].pieces)) for name in order}
    status = {name: Status.PENDING if parents[name] else Status.READY for name in order}
    ends: list[tuple[float, str]] = []
    ended: dict[str, float] = {}
    cause: dict[str, str] = {}
    now, last = 0.0, ""
    while not finished(status):
        for name in to_start(status, demand, Demand(workers)):
            status[name], cause[name] = Status.RUNNING, last
            heapq.heappush(ends, (now + costs[name].on(workers), name))
        now, last = heapq.heappop(ends)
        status[last], ended[last] = Status.DONE, now
        for name in order:
            if status[name] is Status.PENDING and all(parent in ended for parent in parents[name]):
                status[name] = Status.READY
    path = []
    while last:
        path.append(last)
        last = cause[last]
    return Replay(now, tuple(reversed(path)))


def costs_of(store: Store, steps: Sequence[Mapping[str, Any]], startup: float | None, shards: int) -> dict[str, Cost]:
    """From the commits of a run's steps."""
    seconds, pieces = {}, {}
    for step in steps:
        commit = store.lookup(step["step_id"])
        assert commit is not None, f"{step['name']}: no result; expected a finished run whose steps are kept"
        seconds[step["name"]] = commit.record["seconds"]
        kept = store.manifest(commit.manifest)
        if kept.result.get("metrics", {}).get("tokens") == 0:
            continue  # a teacher that was refused: nothing was scored, no worker started
        if step["job"] in SHARDED:
            pieces[step["name"]] = shards or max(1, sum(file.path.endswith(".parquet") for file in kept.files))
        elif step["job"] in TRAINED:
            pieces[step["name"]] = max(1, int(step["config"].get("batch") or 1))
    if startup is None:
        startup = min((seconds[name] for name in pieces), default=0.0)
    print(f"startup: {startup:.1f} s")
    return {
        name: Cost(min(took, startup), max(0.0, took - startup), pieces[name]) if name in pieces else Cost(took)
        for name, took in seconds.items()
    }


def parents_of(steps: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Inputs are written down as `step[part]`; what names no step is a source."""
    names = {step["name"] for step in steps}
    return {
        step["name"]: [name for _, text in step["inputs"] for name in [text.partition("[")[0]] if name in names]
        for step in steps
    }


def newest(store: Store) -> RunLog:
    for run_log in list_run_logs(store):
        if run_log.steps() and all(step["status"] == "done" for step in run_log.steps()):
            return run_log
    raise SystemExit(f"{store.root}: no finished run; expected one; do `ratchet run quickstart` first")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path(".ratchet"))
    parser.add_argument("--startup", type=float)
    parser.add_argument("--shards", type=int, default=0)
    given = parser.parse_args()
    store = Store.view(given.store)
    run_log = newest(store)
    steps = run_log.steps()
    print(f"{run_log.run_id}: {len(steps)} steps")
    costs = costs_of(store, steps, given.startup, given.shards)
    parents = parents_of(steps)
    alone = replay(parents, costs, 1)
    print(f"{'workers':>8}{'seconds':>10}{'times as fast':>15}{'of ideal':>10}   what the time goes into")
    for workers in WORKERS:
        found = replay(parents, costs, workers)
        times = alone.seconds / found.seconds
        longest = sorted(found.path, key=lambda name: -costs[name].on(workers))[:3]
        parts = ", ".join(f"{name} {costs[name].on(workers) / found.seconds:.0%}" for name in longest)
        fixed = sum(costs[name].fixed for name in found.path) / found.seconds
        numbers = f"{workers:8}{found.seconds:10.0f}{times:15.2f}{times / workers:10.0%}"
        print(f"{numbers}   {fixed:.0%} does not divide; {parts}")


if __name__ == "__main__":
    main()
