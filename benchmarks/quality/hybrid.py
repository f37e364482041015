"""The gain of fusing an embedder's rankings with BM25 and the nearest training queries, with the weights that are best
on held-out queries.

    python -m benchmarks.quality.hybrid --data eedi/ squad=SQUAD.json stacks=STACKS.jsonl --queries 1500 --seeds 3

The embedder is a linear map of MiniLM's vectors, trained on mined negatives (see `ablation --linear`); `base` is MiniLM
without a map. The nearest training queries are found by the same vectors (`evaluate_retrieval` with system=knn). The
first 100 documents of each ranking are fused as in the job `fuse`.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.quality.repeat import make_parser, repeat
from benchmarks.quality.retrieval_sets import compute_average_precision, write_ranking
from benchmarks.quality.selection import Case, normalize
from ratchet.data.lexical_baselines import BM25
from ratchet.data.retrieval import Query
from ratchet.data.tables import read_shards
from ratchet.jobs.retrieval import evaluate_retrieval
from ratchet.models.search.nearest_queries import vote
from ratchet.models.search.top_k import top_k

VARIANTS = {
    "embedder": ("embedder",),
    "BM25": ("bm25",),
    "embedder and BM25, by scores": ("embedder", "bm25"),
    "embedder and BM25, by ranks": ("embedder", "bm25"),
    "training queries": ("embedder_knn",),
    "embedder and training queries, by scores": ("embedder", "embedder_knn"),
    "embedder, BM25 and training queries, by scores": ("embedder", "bm25", "embedder_knn"),
    "base": ("base",),
    "base and BM25, by scores": ("base", "bm25"),
    "base, training queries": ("base_knn",),
    "base, BM25 and training queries, by scores": ("base", "bm25", "base_knn"),
}
METRICS = ("map@25", "seen", "unseen", "weight")
DEPTH = 100


def main() -> None:
    parser = make_parser(__doc__, list(VARIANTS), "hybrid.jsonl")
    parser.add_argument(
        "--valid", type=int, default=600, help="queries that choose the weights at most"
    )
    parser.add_argument("--evaluations", type=int, default=4, help="epochs of which one is chosen")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--vectors",
        type=Path,
        default=Path("ablation-vectors"),
        help="folder for the base's vectors",
    )
    given = parser.parse_args()
    cases = functools.lru_cache(1)(lambda source, seed: Rankings(Case(given, source, seed)))
    repeat(given, METRICS, lambda source, name, seed: cases(source, seed).measure(name))


class Rankings:
    """Rankings of the held-out queries of a case by each system, in folders `<system>_<split>`."""

    def __init__(self, case: Case) -> None:
        self.case = case
        base = case.make_model(np.eye(case.vectors["corpus"].shape[1], dtype=np.float32))
        best = max(case.finetune(base, ""), key=lambda model: model.valid_Q.mean())
        bm25 = BM25(case.corpus["text"].to_pylist())
        for split in ("valid", "test"):
            own = read_shards(case.folder / split)
            scores = {"bm25": bm25.score(own["text"].to_pylist())}
            for name, model in (("base", base), ("embedder", best)):
                kinds = (split, "corpus", "train")
                query_QD, corpus_ND, train_TD = (
                    normalize(case.vectors[one] @ model.map_DD) for one in kinds
                )
                scores[name] = query_QD @ corpus_ND.T
                nearest = top_k(
                    query_QD, [(0, train_TD)], evaluate_retrieval.Config().neighbors + 1
                )
                scores[f"{name}_knn"] = vote(
                    *nearest, case.relevant["train"], len(corpus_ND)
                ).toarray()
            rows = own.to_pylist()
            queries = [
                Query(row["id"], row["text"], tuple(row["positives"]), tuple(row["grades"]))
                for row in rows
            ]
            for name, score_QN in scores.items():
                write_ranking(
                    case.folder / f"{name}_{split}", case.documents, queries, score_QN, DEPTH
                )

    def measure(self, name: str) -> dict[str, Any]:
        from ratchet.jobs.predictions.fuse import Config, Inputs, run

        systems, folder = VARIANTS[name], self.case.folder
        if len(systems) == 1:
            return self.evaluate(folder / f"{systems[0]}_test")
        valid, test = (
            [folder / f"{one}_{split}" for one in systems] for split in ("valid", "test")
        )
        out = folder / name.replace(" ", "_")
        config = Config(method="scores" if name.endswith("scores") else "rrf", names=systems)
        context: Any = SimpleNamespace(out=out)
        result = run(context, config, Inputs(folder / "valid", tuple(valid), tuple(test)))
        weights = [float(result.metrics[f"weight/{one}"]) for one in systems]
        return self.evaluate(out / "ranking") | {"weight": 1 - weights[0] / sum(weights)}

    def evaluate(self, ranking: Path) -> dict[str, Any]:
        """Return MAP@25 of a ranking of the test queries, and of those with seen labels and without."""
        right = read_shards(self.case.folder / "test")["positives"].to_pylist()
        values = []
        for names, positives in zip(
            read_shards(ranking)["documents"].to_pylist(), right, strict=True
        ):
            values.append(compute_average_precision(np.isin(names[:25], positives), len(positives)))
        seen_Q = self.case.seen["test"]
        parts = {"map@25": np.ones_like(seen_Q), "seen": seen_Q, "unseen": ~seen_Q}
        return {
            name: np.array(values)[own_Q].mean() for name, own_Q in parts.items() if own_Q.any()
        }


if __name__ == "__main__":
    main()
