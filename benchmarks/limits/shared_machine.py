"""The speed of training and embedding on CPUs beside other busy processes: as many threads as there are cores, and as
many as there are free cores.

    python -m benchmarks.limits.shared_machine [--seconds 15] [--busy 0 1 2]

MiniLM in float32. Training is forward and backward passes of 2,048 tokens; embedding is `Encoder.encode` of short
texts. The ways take turns within one run, each for --seconds, --rounds times; the medians are printed. A busy process
counts in a loop. With `sleeping` threads, OMP_WAIT_POLICY is PASSIVE, in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

BUSY = "import os\nwhile os.getppid() != 1: pass"
"""Ends with the benchmark, also if that is killed."""
WAYS = ("fixed", "free", "sleeping")
TASKS = ("training", "embedding")


@contextmanager
def busy(processes: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(task: str, way: str, seconds: float) -> float:
    """Return tokens per second. Called in a process of its own."""
    import torch

    from ratchet.jobs.pretrained import pretrained
    from ratchet.models.embedder import encoder
    from ratchet.models.free_cores import FreeCores

    most = len(os.sched_getaffinity(0))
    folder = pretrained("sentence-transformers/all-MiniLM-L6-v2").path
    embedder = encoder.load(folder, dtype="float32", device="cpu", training=task == "training")
    cores = FreeCores(most)
    ids = torch.randint(1000, 20_000, (32, 64), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    texts = [f"the solution of equation {number} is a fraction" for number in range(256)]

    def do() -> int:
        if way == "free":
            cores.look()
        if task == "training":
            embedder.embed(ids, mask).sum().backward()
            return ids.numel()
        tokens = 0

        def count(lengths: object) -> None:
            nonlocal tokens
            tokens += int(lengths.sum())  # type: ignore[attr-defined]
            if way == "free":
                cores.look()

        embedder.encode(texts, "passage", progress=count)
        return tokens

    warm = time.monotonic() + 2.5
    while time.monotonic() < warm:
        do()
    begin, done = time.monotonic(), 0
    while time.monotonic() - begin < seconds:
        done += do()
    return done / (time.monotonic() - begin)


def start(task: str, way: str, seconds: float) -> float:
    command = [sys.executable, "-m", "benchmarks.limits.shared_machine", "--task", task]
    command += ["--way", way, "--seconds", str(seconds)]
    variables = {"OMP_WAIT_POLICY": "PASSIVE"} if way == "sleeping" else {}
    own = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    return float(subprocess.check_output(command, env=own | variables, text=True).split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=TASKS)
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        print(measure(given.task, given.way, given.seconds))
        return
    print(f"{'tokens/s':12}{'busy':>6}" + "".join(f"{way:>12}" for way in WAYS))
    for task in given.tasks:
        for processes in given.busy:
            found: dict[str, list[float]] = {way: [] for way in WAYS}
            with busy(processes):
                for _ in range(given.rounds):
                    for way in WAYS:
                        found[way].append(start(task, way, given.seconds))
            cells = "".join(f"{statistics.median(found[way]):12,.0f}" for way in WAYS)
            print(f"{task:12}{processes:6}{cells}", flush=True)


if __name__ == "__main__":
    main()
