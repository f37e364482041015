"""Exact metrics over the full ranking: counting (models/ranks.py) beside sorting, and beside pytrec_eval over all rows.

    python -m benchmarks.metrics [--queries 2000] [--rows 8192] [--relevant 3]

Random unit vectors, alternating rounds, one table: median seconds of the whole evaluation from vectors to numbers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import pytrec_eval

from models import ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--relevant", type=int, default=3, help="relevant documents per query")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    query, corpus = (rng.standard_normal((n, 384), dtype=np.float32) for n in (given.queries, given.rows))
    relevant = ranks.Relevant.of([rng.choice(given.rows, given.relevant, replace=False) for _ in range(given.queries)])
    few = slice(0, min(given.queries, 200))  # pytrec_eval takes minutes for all: measured on some, and multiplied

    def counted() -> float:
        return ranks.rank_metrics(ranks.ranks_of_relevant(query, relevant, corpus)[0], relevant).values["map"]

    def sorted_() -> float:
        found = np.empty(len(relevant.indices), np.int64)
        for start in range(0, len(query), 512):
            order = np.argsort(-(query[start : start + 512] @ corpus.T), axis=1, kind="stable")
            place = np.empty_like(order)
            np.put_along_axis(place, order, np.arange(given.rows)[None, :], axis=1)
            pairs = slice(relevant.indptr[start], relevant.indptr[min(start + 512, len(query))])
            found[pairs] = place[relevant.query_R[pairs] - start, relevant.indices[pairs]] + 1
        return ranks.rank_metrics(found, relevant).values["map"]

    def by_pytrec_eval() -> float:
        scores = (query[few] @ corpus.T).tolist()
        names = [f"d{row}" for row in range(given.rows)]
        run = {f"q{q}": dict(zip(names, row, strict=True)) for q, row in enumerate(scores)}
        qrels = {
            f"q{q}": {names[row]: 1 for row in relevant.indices[relevant.indptr[q] : relevant.indptr[q + 1]]}
            for q in range(few.stop)
        }
        found = pytrec_eval.RelevanceEvaluator(qrels, {"map", "map_cut", "P", "recall", "ndcg_cut"}).evaluate(run)
        return float(np.mean([one["map"] for one in found.values()]))

    ways: dict[str, tuple[Callable[[], float], float]] = {
        "ranks.py (counting)": (counted, 1.0),
        "argsort": (sorted_, 1.0),
        "pytrec_eval": (by_pytrec_eval, given.queries / few.stop),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    value: dict[str, float] = {}
    for _ in range(given.rounds):
        for name, (run_it, factor) in ways.items():
            start = time.perf_counter()
            value[name] = run_it()
            seconds[name].append((time.perf_counter() - start) * factor)
    ours = float(np.median(seconds["ranks.py (counting)"]))
    print(f"{given.queries} queries x {given.rows} rows x 384, {given.relevant} relevant each")
    print(f"{'':22} {'median s':>9} {'ratio':>7} {'map':>10}")
    for name in ways:
        median = float(np.median(seconds[name]))
        note = "" if ways[name][1] == 1 else f"  (time of {few.stop} queries, multiplied; map of those)"
        print(f"{name:22} {median:9.3f} {median / ours:6.2f}x {value[name]:10.7f}{note}")


if __name__ == "__main__":
    main()
