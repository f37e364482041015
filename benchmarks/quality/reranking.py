"""The gain of a reranker over a finetuned embedder: the same lists, one setting of the reranker changed, several seeds.

    python -m benchmarks.quality.reranking --data generated eedi/ --seeds 3 [--only "as in the loop" "window 0 to 50"]

For each seed the queries are split anew by group, and all weights of MiniLM are finetuned on mined negatives. Each
variant of the reranker starts from the weights of this embedder and trains on negatives from its rankings. The reranker
scores the first 25 documents of the test queries. `map@25`, `seen` and `unseen` are of the order by both scores, with
the weights that are best on the selection queries, as in the loop's row "reranked". `alone` is MAP@25 of the order by
the reranker's scores only, and `weight` the weight of these scores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.in_process import find_device, make_config, make_task, train
from benchmarks.quality.repeat import make_parser, repeat
from benchmarks.quality.retrieval_sets import (
    compute_average_precision,
    load,
    split,
    write_corpus,
    write_mined,
    write_queries,
    write_ranking,
)
from ratchet.data.retrieval.splits import find_seen

EMBEDDER: dict[str, Any] = {
    "method": "full",
    "epochs": 2,
    "learning_rate": 2e-4,
    "temperature": 0.05,
}
LOOP: dict[str, Any] = {
    "method": "lora",
    "epochs": 3,
    "learning_rate": 1e-3,
    "label_smoothing": 0.2,
}
"""The settings of the retrieval loop."""
FULL: dict[str, Any] = {"method": "full", "learning_rate": 2e-4}
VARIANTS: dict[str, dict[str, Any]] = {
    "as in the loop": {},
    "window 0 to 50": {"window": (0, 50)},
    "full": FULL,
    "full, window 0 to 50": {**FULL, "window": (0, 50)},
    "full, window 0 to 50, crossed lists": {**FULL, "window": (0, 50), "crossed": True},
    "full, window 0 to 50, rate 5e-5": {**FULL, "window": (0, 50), "learning_rate": 5e-5},
}
METRICS = ("map@25", "seen", "unseen", "alone", "weight", "seconds")
DEPTH = 25


def main() -> None:
    parser = make_parser(__doc__, ["embedder", *VARIANTS], "reranking.jsonl")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    import torch

    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:

        @lru_cache(1)
        def make_case(source: str, seed: int) -> Case:
            return Case(given, source, seed, Path(tempfile.mkdtemp(dir=folder)))

        def measure(source: str, name: str, seed: int) -> dict[str, Any]:
            case = make_case(source, seed)
            return case.baseline() if name == "embedder" else case.measure(VARIANTS[name])

        repeat(given, METRICS, measure)


class Case:
    """A split of a data set, with the embedder that was finetuned on it and its rankings."""

    def __init__(self, given: argparse.Namespace, source: str, seed: int, folder: Path) -> None:
        from ratchet.models.model_files import MINILM, resolve

        self.given, self.seed, self.folder = given, seed, folder
        data = load(source)
        self.corpus = list(data.corpus)
        most = {"train": given.queries, "valid": given.held_out, "test": given.held_out}
        self.splits = split(data.queries, seed, most, given.unseen, 0.2)
        write_corpus(folder / "corpus", self.corpus)
        for name in ("valid", "test"):
            write_queries(folder / name, self.splits[name])
        self.embedder = self.finetune(
            resolve(MINILM), np.arange(len(self.splits["train"])), folder / "embedder"
        )
        self.scores = {name: self.score(self.embedder, name) for name in self.splits}
        for name in ("valid", "test"):
            write_ranking(
                folder / f"{name}_ranking", self.corpus, self.splits[name], self.scores[name], DEPTH
            )

    def finetune(self, base: Path, rows: np.ndarray, out: Path) -> Path:
        """Return the embedder that was finetuned on some training queries, on negatives that the base mines."""
        from ratchet.jobs.retrieval.embedder_training import EmbedderTask
        from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs

        queries = [self.splits["train"][row] for row in rows]
        mined = self.folder / "mined"
        shutil.rmtree(mined, ignore_errors=True)
        write_mined(
            mined,
            self.corpus,
            queries,
            self.score(base, "train")[rows],
            seed=self.seed,
            labelled=self.labelled,
        )
        config = Config(**EMBEDDER, dtype="float32", seed=self.seed)
        inputs = Inputs(base, mined, self.folder / "corpus", self.folder / "valid")
        task = make_task(EmbedderTask, config, inputs, self.given.threads)
        train(task)
        task.save(out)
        return out

    @property
    def labelled(self) -> bool:
        """Whether negatives are drawn from labelled documents, which is the rule of the loop's `candidates=auto`."""
        labels = {name for query in self.splits["train"] for name in query.positives}
        return len(labels) >= len(self.corpus) / 4

    def score(self, model: Path, name: str) -> np.ndarray:
        from ratchet.models.embedder import encoder

        loaded = encoder.load(model, dtype="float32", device=find_device())
        query_QD = loaded.encode([query.text for query in self.splits[name]], "query")
        scores: np.ndarray = (
            query_QD @ loaded.encode([one.text for one in self.corpus], "passage").T
        )
        return scores

    def cross(self) -> np.ndarray:
        """Return the scores of training queries by embedders that were finetuned on the other half of them."""
        from ratchet.models.model_files import MINILM, resolve

        groups = [query.group for query in self.splits["train"]]
        chosen = set(np.random.default_rng(self.seed).permutation(sorted(set(groups)))[::2])
        half_Q = np.array([group in chosen for group in groups])
        scores = np.empty_like(self.scores["train"])
        for number, own_Q in enumerate((half_Q, ~half_Q)):
            out = self.folder / f"half{number}"
            if not out.exists():
                self.finetune(resolve(MINILM), np.flatnonzero(~own_Q), out)
            scores[own_Q] = self.score(out, "train")[own_Q]
        return scores

    def measure(self, variant: dict[str, Any]) -> dict[str, Any]:
        """Train a reranker, and return MAP@25 of its blend with the embedder, and of its own order (alone)."""
        from ratchet.jobs.retrieval.finetune_reranker import Config, Inputs
        from ratchet.jobs.retrieval.reranker_training import RerankerTask

        started = time.perf_counter()
        scores = self.cross() if variant.get("crossed") else self.scores["train"]
        mined = self.folder / "mined_hard"
        shutil.rmtree(mined, ignore_errors=True)
        window = variant.get("window", (2, 100))
        train_queries = self.splits["train"]
        options = {"seed": self.seed, "window": window, "labelled": self.labelled}
        write_mined(mined, self.corpus, train_queries, scores, **options)
        values = {
            name: value
            for name, value in {**LOOP, **variant}.items()
            if name not in ("window", "crossed")
        }
        values |= {"dtype": "float32", "seed": self.seed, "depth": DEPTH}
        config = make_config(Config, values, self.given.set)
        folders = (self.folder / name for name in ("corpus", "valid", "valid_ranking"))
        task = make_task(
            RerankerTask, config, Inputs(self.embedder, mined, *folders), self.given.threads
        )
        train(task)
        own = {name: self.rerank(task, name) for name in ("valid", "test")}
        return {"seconds": time.perf_counter() - started, **self.blend(own)}

    def rerank(self, task: Any, name: str) -> list[np.ndarray]:
        texts = [one.text for one in self.corpus]
        lists = [[texts[row] for row in rows] for rows in self.best(name)]
        found: list[np.ndarray] = task.reranker.score(
            [query.text for query in self.splits[name]], lists
        )
        return found

    def best(self, name: str) -> np.ndarray:
        """Return the rows of the documents that are reranked."""
        rows: np.ndarray = np.argsort(-self.scores[name], axis=1, kind="stable")[:, :DEPTH]
        return rows

    def baseline(self) -> dict[str, Any]:
        return self.evaluate("test", np.take_along_axis(self.scores["test"], self.best("test"), 1))

    def blend(self, own: dict[str, list[np.ndarray]]) -> dict[str, Any]:
        import pyarrow as pa

        from ratchet.data.fusion import choose_weights, compute_points, compute_spread, fuse

        names = [one.id for one in self.corpus]
        points: dict[str, Any] = {}
        spreads: list[float] = []
        for name in ("valid", "test"):
            rows = self.best(name)
            documents = [[names[row] for row in own_rows] for own_rows in rows]
            embedder = np.take_along_axis(self.scores[name], rows, 1)
            tables = [
                pa.table({"documents": documents, "scores": [row.tolist() for row in scores]})
                for scores in (embedder, own[name])
            ]
            spreads = spreads or [compute_spread(table) for table in tables]
            points[name] = [
                compute_points(table, "scores", spread)
                for table, spread in zip(tables, spreads, strict=True)
            ]

        def order(name: str, weights: Any) -> np.ndarray:
            place = {one: row for row, one in enumerate(names)}
            fused = fuse(points[name], weights)
            return np.array([[place[one] for one, _ in found] for found in fused])

        weights = choose_weights(
            2, lambda tried: self.evaluate_order("valid", order("valid", tried))["map@25"]
        )
        alone = self.evaluate_order("test", order("test", [0.0, 1.0]))["map@25"]
        weight = weights[1] / sum(weights)
        return {
            **self.evaluate_order("test", order("test", weights)),
            "alone": alone,
            "weight": weight,
        }

    def evaluate(self, name: str, scores: np.ndarray) -> dict[str, Any]:
        order = np.argsort(-scores, axis=1, kind="stable")
        return self.evaluate_order(name, np.take_along_axis(self.best(name), order, 1))

    def evaluate_order(self, name: str, rows_QK: np.ndarray) -> dict[str, Any]:
        """Return MAP@25 of lists of document rows."""
        row_of = {one.id: row for row, one in enumerate(self.corpus)}
        values = []
        for query, rows in zip(self.splits[name], rows_QK, strict=True):
            hits = np.isin(rows, [row_of[one] for one in query.positives])
            values.append(compute_average_precision(hits, len(query.positives)))
        value_Q, seen_Q = np.array(values), find_seen(self.splits["train"], self.splits[name])
        parts = {"map@25": np.ones_like(seen_Q), "seen": seen_Q, "unseen": ~seen_Q}
        return {name: value_Q[own_Q].mean() for name, own_Q in parts.items() if own_Q.any()}


if __name__ == "__main__":
    main()
