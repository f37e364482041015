"""Exact metrics where every statement is a query: Ratchet compared with faiss's top 1,000 and pytrec_eval, in seconds
and peak memory.

    python -m benchmarks.inference.metrics [--rows 10000,20000,50000] [--dim 384]

Statements of a paper are random unit vectors around a vector of the paper. The relevant documents of a statement are
the other statements of its paper. Ratchet (models/search/ranks.py) counts ranks over the whole ranking. The other
pipeline is the usual one: `IndexFlatIP`, the best 1,000 documents of each query without the query itself, a run in
pytrec_eval's format (2,000 queries at a time, to limit the memory), and the means of its metrics. Its MRR, P and R
equal Ratchet's if no relevant statement is behind rank 1,000; its MAP is cut at 1,000. Each pipeline is a separate
process.

    python -m benchmarks.inference.metrics --workers 1,2,4,8 [--rows 20000]

Ratchet only, with the queries split over workers as in a run. The workers are simulated: each has one thread and its
share of the queries, and they run one after the other. The time is that of the slowest worker.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

WAYS = {"ours": "ratchet, the whole ranking", "peer": "faiss 1,000 + pytrec_eval"}
DEPTH = 1000
CUT_OFFS = (1, 10, 100, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="10000,20000,50000")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--workers", default="", help="numbers of simulated workers")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.workers:
        print(f"{'workers':>8}{'rows':>9}{'slowest, s':>12}{'efficiency':>12}")
        for rows in map(int, given.rows.split(",")):
            scale(rows, given.dim, given.rounds, [int(one) for one in given.workers.split(",")])
        return
    if given.way:
        print(json.dumps(measure(given.way, int(given.rows), given.dim, given.threads)))
        return
    print(f"{'':28}{'rows':>9}{'seconds':>10}{'of ours':>9}{'peak MiB':>10}{'MRR':>9}{'R@1000':>9}")
    for rows in map(int, given.rows.split(",")):
        best: dict[str, dict[str, float]] = {}
        for _ in range(given.rounds):
            for way in WAYS:
                found = run(way, rows, given)
                if way not in best or found["seconds"] < best[way]["seconds"]:
                    best[way] = found
        for way, label in WAYS.items():
            found = best[way]
            ratio = found["seconds"] / best["ours"]["seconds"]
            numbers = f"{found['seconds']:10.1f}{ratio:9.2f}{found['mib']:10,.0f}{found['mrr']:9.4f}{found['r']:9.4f}"
            print(f"{label:28}{rows:9,}{numbers}", flush=True)


def run(way: str, rows: int, given: argparse.Namespace) -> dict[str, float]:
    arguments = [
        "--rows",
        str(rows),
        "--dim",
        str(given.dim),
        "--threads",
        str(given.threads),
        "--way",
        way,
    ]
    command = [sys.executable, "-m", "benchmarks.inference.metrics", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[2]
    )
    if done.returncode:
        raise SystemExit(f"{way}: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def scale(rows: int, dim: int, rounds: int, counts: list[int]) -> None:
    """Print the time of the slowest worker, the best of the rounds, and how much of the speed of the first number of
    workers each one keeps."""
    import torch

    torch.set_num_threads(1)
    vectors_SD, paper_S = make_statements(rows, dim)
    alone = 0.0
    for workers in counts:
        parts = np.array_split(np.arange(rows), workers)
        times = [
            [time_of(ours, vectors_SD, paper_S, part) for part in parts] for _ in range(rounds)
        ]
        slowest = min(map(max, times))
        alone = alone or slowest * workers
        print(f"{workers:8}{rows:9,}{slowest:12.2f}{alone / (slowest * workers):12.2f}", flush=True)


def time_of(work: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def make_statements(rows: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of statements and the papers that they are from."""
    random = np.random.default_rng(0)
    paper_S = np.sort(random.integers(0, rows // 6, rows))
    centre = random.standard_normal((rows // 6, dim)).astype(np.float32)
    vectors_SD = centre[paper_S] + 2.5 * random.standard_normal((rows, dim)).astype(np.float32)
    return vectors_SD / np.linalg.norm(vectors_SD, axis=1, keepdims=True), paper_S


def measure(way: str, rows: int, dim: int, threads: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(threads)
    vectors_SD, paper_S = make_statements(rows, dim)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    mrr, recall = (ours if way == "ours" else peer)(vectors_SD, paper_S)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "mib": (after - before) / 1024, "mrr": mrr, "r": recall}


def ours(
    vectors_SD: np.ndarray, paper_S: np.ndarray, asked_Q: np.ndarray | None = None
) -> tuple[float, float]:
    """Return the MRR and R@1000 of the statements that ask, all by default."""
    from ratchet.data.formats.papers import other_statements
    from ratchet.models.search.rank_metrics import compute_rank_metrics
    from ratchet.models.search.ranks import Relevant, rank_relevant

    asked_Q = np.arange(len(paper_S)) if asked_Q is None else asked_Q
    relevant = Relevant(*other_statements(paper_S, asked_Q))
    ranks_R = rank_relevant(
        vectors_SD[asked_Q], relevant, lambda: [(0, vectors_SD)], exclude_Q=asked_Q
    )
    values = compute_rank_metrics(ranks_R, relevant, CUT_OFFS).values
    return values["mrr"], values[f"r@{DEPTH}"]


def peer(vectors_SD: np.ndarray, paper_S: np.ndarray) -> tuple[float, float]:
    import faiss
    import pytrec_eval

    index = faiss.IndexFlatIP(vectors_SD.shape[1])
    index.add(vectors_SD)
    first_S = np.searchsorted(paper_S, paper_S, side="left")
    stop_S = np.searchsorted(paper_S, paper_S, side="right")
    names = [str(row) for row in range(len(paper_S))]
    measures = {
        "recip_rank",
        "map",
        *(f"{name}.{','.join(map(str, CUT_OFFS))}" for name in ("P", "recall")),
    }
    total: dict[str, float] = {}
    asked = 0
    for start in range(0, len(paper_S), 2000):
        scores_QK, rows_QK = index.search(vectors_SD[start : start + 2000], DEPTH + 1)
        qrels, ranking = {}, {}
        for q, (scores, rows) in enumerate(
            zip(scores_QK.tolist(), rows_QK.tolist(), strict=True), start
        ):
            relevant = {names[row]: 1 for row in range(first_S[q], stop_S[q]) if row != q}
            if relevant:
                qrels[names[q]] = relevant
                ranking[names[q]] = {
                    names[row]: score for row, score in zip(rows, scores, strict=True) if row != q
                }
        for values in pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(ranking).values():
            asked += 1
            for name, value in values.items():
                total[name] = total.get(name, 0.0) + value
    return total["recip_rank"] / asked, total[f"recall_{DEPTH}"] / asked


if __name__ == "__main__":
    main()
