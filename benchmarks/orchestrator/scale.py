"""A simulation of the gain and the cost of more machines: the steps of a finished run on 1 to 256 machines of one
worker.

    python -m benchmarks.orchestrator.scale [--store .ratchet] [--startup 8] [--grow 1] [--network 10] [--storage 1] \
        [--boot 180]

The schedule is that of orchestrator/execution/schedule.py. Steps and seconds are those of the newest finished run,
which should have had one worker. A step that is distributed takes `startup` seconds on each worker, for Ray's
processes, imports and loading the model (default: the seconds of the shortest such step;
`benchmarks.orchestrator.nodes` measures it for several workers). The rest of its time is divided by the number of
workers. A step has no more workers than pieces of work: pieces of shards, or for training the rows of a batch.

Assumed, not measured: all machines read from one store, `storage` GB/s together. Each reads the inputs that every
worker needs whole (models, corpora, vectors of the corpus), and its part of the others. In a training step the
gradients of the trained weights, in float32, and the vectors of the batch are exchanged over a ring: with W workers
each machine sends 2 (W - 1) / W of these bytes, at `network` Gbit/s per machine and 50 us per message. Communication
does not overlap with computation. `--grow` multiplies the documents, queries and training steps: divided seconds,
shards and bytes of data grow with it, models do not.

The second table shows the machine-hours, without the head. A fixed cluster is up for the whole run. An autoscaled
cluster starts a machine when a step needs one, which takes `boot` seconds, and gives it back after `idle` seconds
without a step, also after the end of the run.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ratchet.jobs.distributed.piece_size import (
    GENERATION_PIECES,
    MODEL_PIECES,
    SEARCH_PIECES,
    choose_piece_rows,
)
from ratchet.orchestrator.execution.schedule import Demand, Status, finished, to_start
from ratchet.orchestrator.run_log import RunLog, list_run_logs
from ratchet.orchestrator.store import Store

MAPS = {
    "embed": MODEL_PIECES,
    "rerank": MODEL_PIECES,
    "teacher_logprobs": MODEL_PIECES,
    "generate": GENERATION_PIECES,
    "mine": SEARCH_PIECES,
    "evaluate_retrieval": SEARCH_PIECES,
    "evaluate_papers": SEARCH_PIECES,
}
"""Job that maps a worker over shards -> number of pieces if the shards are few."""
ROWS = ("statements", "rows", "queries", "samples")
"""Metrics of these jobs with the number of rows that they map over."""
SHARD_ROWS = 4096
TRAINED = {"finetune_embedder", "finetune_reranker", "finetune_embedder_pairs", "sft"}
DEALT = {"texts", "queries", "query_embeddings", "lists", "prompts"}
"""Inputs of which each worker reads its part. All others are read whole."""
MODELS = {"model", "base", "current_best", "reranker"}
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LATENCY = 50e-6
CAUSES = ("start", "whole pieces", "storage", "network", "waiting")


@dataclass(frozen=True)
class Machines:
    """What is assumed of them, in bytes per second."""

    network: float
    storage: float


@dataclass(frozen=True)
class Cost:
    """Costs of one step: seconds that do not divide, seconds that do and into how many pieces, bytes that every worker
    reads whole, bytes that are dealt, messages to all others, and bytes that go around the ring."""

    fixed: float
    divided: float = 0.0
    pieces: int = 1
    whole: float = 0.0
    dealt: float = 0.0
    messages: int = 0
    ring: float = 0.0

    def workers(self, machines: int) -> int:
        return min(machines, self.pieces)

    def on(self, machines: int, assumed: Machines) -> dict[str, float]:
        """Return seconds by what they go into. Pieces are dealt whole: three on two workers take as long as two."""
        workers = self.workers(machines)
        even = self.divided / workers
        uneven = self.divided * ceil(self.pieces / workers) / self.pieces - even
        others = workers - 1
        read = max(
            (self.whole * workers + self.dealt) / assumed.storage,
            (self.whole + self.dealt / workers) / assumed.network,
        )
        # What one worker reads is in its measured time.
        read -= max(
            (self.whole + self.dealt) / assumed.storage, (self.whole + self.dealt) / assumed.network
        )
        sent = (
            2 * others / workers * self.ring / assumed.network
            + 2 * others * self.messages * LATENCY
        )
        return {
            "work": even,
            "start": self.fixed,
            "whole pieces": uneven,
            "storage": max(0.0, read),
            "network": sent,
        }


@dataclass
class Replay:
    """The run on some machines: its seconds, and the seconds that machines were up."""

    seconds: float = 0.0
    up: float = 0.0


def replay(
    parents: Mapping[str, Sequence[str]],
    costs: Mapping[str, Cost],
    machines: int,
    assumed: Machines,
    boot: float = 0.0,
    idle: float | None = None,
) -> Replay:
    """Steps in the recipe's order, which has parents before children. idle: seconds after which a machine without a
    step is given back. None: all are up for the whole run."""
    order, found = list(parents), Replay()
    demand = {name: Demand(costs[name].workers(machines)) for name in order}
    status = {name: Status.PENDING if parents[name] else Status.READY for name in order}
    ends: list[tuple[float, str]] = []
    free: list[float] = []  # when each machine that is up and has no step became free
    now = 0.0
    while not finished(status):
        for name in to_start(status, demand, Demand(machines)):
            status[name] = Status.RUNNING
            needed = int(demand[name].cpus)
            reused = min(needed, len(free))
            free.sort()
            for _ in range(reused):
                found.up += now - free.pop()  # the last one that became free
            started = now + (boot if idle is not None and reused < needed else 0.0)
            end = started + sum(costs[name].on(machines, assumed).values())
            found.up += needed * (end - now)
            heapq.heappush(ends, (end, name))
        now, last = heapq.heappop(ends)
        status[last] = Status.DONE
        free += [now] * int(demand[last].cpus)
        if idle is not None:
            found.up += idle * sum(now - since > idle for since in free)
            free = [since for since in free if now - since <= idle]
        for name in order:
            if status[name] is Status.PENDING and all(
                status[parent] is Status.DONE for parent in parents[name]
            ):
                status[name] = Status.READY
    found.seconds = now
    found.up = machines * (now + boot) if idle is None else found.up + idle * len(free)
    return found


def find_causes(
    costs: Iterable[Cost], machines: int, assumed: Machines, seconds: float
) -> dict[str, float]:
    """Return the share of all machines' time by what it goes into."""
    found = dict.fromkeys(("work", *CAUSES), 0.0)
    for cost in costs:
        for cause, took in cost.on(machines, assumed).items():
            found[cause] += cost.workers(machines) * took
    total = machines * seconds
    found["waiting"] = max(0.0, total - sum(found.values()))
    return {cause: took / total for cause, took in found.items()}


def read_costs(
    store: Store, steps: Sequence[Mapping[str, Any]], startup: float | None, grow: int
) -> dict[str, Cost]:
    """Return the cost of each step, from the commits of a run."""
    commits = {step["name"]: store.lookup(step["step_id"]) for step in steps}
    seconds = {
        name: commit.record["seconds"] for name, commit in commits.items() if commit is not None
    }
    kept = {
        name: store.manifest(commit.manifest)
        for name, commit in commits.items()
        if commit is not None
    }
    metrics = {name: manifest.result.get("metrics", {}) for name, manifest in kept.items()}
    weights = max((int(own.get("weights", 0)) for own in metrics.values()), default=0)
    dim = max((int(own.get("dim", 0)) for own in metrics.values()), default=0)
    # A teacher that was refused scored nothing, and started no worker.
    spread = {
        step["name"]
        for step in steps
        if step["job"] in MAPS.keys() | TRAINED and metrics[step["name"]].get("tokens") != 0
    }
    least = min((seconds[name] for name in spread), default=0.0) if startup is None else startup
    print(f"startup: {least:.1f} s")

    def measure_input(text: str, name: str) -> float:
        """Return the bytes of an input, `step[part]`. A model from elsewhere has as many weights as the trained one."""
        origin, _, part = text.partition("[")
        if origin not in kept:
            return 4.0 * weights if name in MODELS else 0.0
        size = sum(
            file.bytes for file in kept[origin].files if file.path.startswith(part.rstrip("]"))
        )
        return float(size * (1 if name in MODELS else grow))

    costs = {}
    for step in steps:
        name, took = step["name"], seconds[step["name"]]
        if name not in spread:
            costs[name] = Cost(took)
            continue
        sizes = [(one, measure_input(text, one)) for one, text in step["inputs"]]
        dealt = sum(size for one, size in sizes if one in DEALT)
        own: dict[str, Any] = {"whole": sum(size for _, size in sizes) - dealt, "dealt": dealt}
        if step["job"] in MAPS:
            rows = grow * next((int(metrics[name][one]) for one in ROWS if one in metrics[name]), 1)
            size = choose_piece_rows(rows, MAPS[step["job"]]) or rows
            pieces = ceil(rows / min(size, SHARD_ROWS))
        else:
            config, curves = step["config"], kept[name].result.get("curves", {})
            number = grow * int(max(curves.get("loss against step", {}).get("x") or [0]))
            pieces = int(config.get("batch_size") or 1)
            vectors = 4.0 * dim * pieces * (1 + int(config.get("num_negatives") or 0))
            ring = number * (4.0 * metrics[name].get("trainable_weights", 0) + vectors)
            own |= {"messages": 2 * number, "ring": ring}
        costs[name] = Cost(min(took, least), grow * max(0.0, took - least), pieces, **own)
    return costs


def find_parents(steps: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Inputs are written down as `step[part]`; what names no step is a source."""
    names = {step["name"] for step in steps}
    return {
        step["name"]: [
            name for _, text in step["inputs"] for name in [text.partition("[")[0]] if name in names
        ]
        for step in steps
    }


def find_newest(store: Store) -> RunLog:
    for run_log in list_run_logs(store):
        if run_log.steps() and all(step["status"] == "done" for step in run_log.steps()):
            return run_log
    raise SystemExit(
        f"{store.root}: no finished run; expected one; do `ratchet run quickstart` first"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", type=Path, default=Path(".ratchet"))
    parser.add_argument("--startup", type=float, help="seconds")
    parser.add_argument("--grow", type=int, default=1)
    parser.add_argument("--network", type=float, default=10.0, help="Gbit/s of each machine")
    parser.add_argument(
        "--storage", type=float, default=1.0, help="GB/s of the store for all machines"
    )
    parser.add_argument(
        "--boot", type=float, default=180.0, help="seconds until a new machine runs steps"
    )
    parser.add_argument(
        "--idle",
        type=float,
        default=300.0,
        help="seconds after which one without a step is given back",
    )
    given = parser.parse_args()
    store = Store.view(given.store)
    run_log = find_newest(store)
    steps = run_log.steps()
    print(f"{run_log.run_id}: {len(steps)} steps")
    assumed = Machines(given.network * 1e9 / 8, given.storage * 1e9)
    parents, costs = find_parents(steps), read_costs(store, steps, given.startup, given.grow)
    alone = replay(parents, costs, 1, assumed).seconds
    print(
        f"{'machines':>8}{'seconds':>10}{'speedup':>9}{'efficiency':>12}   share of the machines' time"
    )
    for machines in WORKERS:
        found = replay(parents, costs, machines, assumed)
        share = find_causes(costs.values(), machines, assumed, found.seconds)
        parts = ", ".join(
            f"{cause} {share[cause]:.0%}" for cause in CAUSES if share[cause] >= 0.005
        )
        speedup = alone / found.seconds
        print(
            f"{machines:8}{found.seconds:10,.0f}{speedup:9.2f}{speedup / machines:12.0%}   {parts}"
        )
    print(f"\n{'':8}{'fixed cluster':>30}{'autoscaled':>30}")
    print(f"{'machines':>8}" + 2 * f"{'seconds':>15}{'machine-hours':>15}")
    for machines in WORKERS:
        fixed = replay(parents, costs, machines, assumed, given.boot)
        scaled = replay(parents, costs, machines, assumed, given.boot, given.idle)
        fixed.seconds += given.boot
        cells = "".join(f"{one.seconds:15,.0f}{one.up / 3600:15.2f}" for one in (fixed, scaled))
        print(f"{machines:8}{cells}")


if __name__ == "__main__":
    main()
