"""The effect of the significance test that decides whether a model is kept: the metric on other queries after several
iterations.

    python -m benchmarks.quality.selection --data eedi/ --queries 1500 --held-out 1000 --valid 600 --seeds 8

In each iteration the model that was kept mines negatives, and a linear map of its vectors is trained (see
`ablation --linear`). The best epoch is kept if `finetune_embedder` would keep it on the valid queries with the
variant's `significance_level`. `refused though better` counts, over all iterations, the refused models that are better
on the test queries; the test queries decide nothing.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.ablation import LOOP, embed, embed_queries, rank_all
from benchmarks.quality.in_process import LINEAR, make_config, train_linear
from benchmarks.quality.repeat import make_parser, repeat
from benchmarks.quality.retrieval_sets import write_case, write_mined
from ratchet.data.retrieval.splits import find_seen
from ratchet.data.significance import number_groups, sum_by_group
from ratchet.data.tables import DocumentRows, read_shards
from ratchet.data.triplets import Triplets, find_corpus_rows
from ratchet.models.search.ranks import Relevant

LEVELS = {f"level {level:g}": level for level in (0.05, 0.1, 0.2, 0.5, 1.0)}
METRICS = ("map@25", "seen", "unseen", "kept", "kept though worse", "refused though better")


@dataclass(frozen=True, eq=False)
class Model:
    """A linear map of MiniLM's vectors, with its metric of each query."""

    map_DD: np.ndarray
    valid_Q: np.ndarray
    test_Q: np.ndarray


def main() -> None:
    parser = make_parser(__doc__, list(LEVELS), "selection.jsonl")
    parser.add_argument("--valid", type=int, default=600, help="queries that decide at most")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument(
        "--evaluations",
        type=int,
        default=4,
        help="epochs of an iteration among which one is chosen",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--vectors",
        type=Path,
        default=Path("ablation-vectors"),
        help="folder for the base's vectors",
    )
    given = parser.parse_args()
    given.out = given.out.with_stem(
        f"{given.out.stem}-{given.valid}-{given.iterations}-{given.evaluations}"
    )
    cases = functools.lru_cache(1)(lambda source, seed: Case(given, source, seed))
    repeat(given, METRICS, lambda source, name, seed: cases(source, seed).iterate(LEVELS[name]))


class Case:
    """A data set, split with a seed. Iterations that start from the same model are computed once."""

    def __init__(self, given: argparse.Namespace, source: str, seed: int) -> None:
        import torch

        torch.set_num_threads(given.threads)
        self.given, self.seed, self.folder = given, seed, Path(tempfile.mkdtemp())
        most = {"train": given.queries, "valid": given.valid, "test": given.held_out}
        self.documents, splits = write_case(self.folder, source, seed, most, given.unseen)
        self.train = splits["train"]
        self.corpus = read_shards(self.folder / "corpus")
        self.vectors = {"corpus": embed(given, self.corpus["text"].to_pylist(), "passage")}
        self.relevant, self.seen = {}, {}
        for name, own in splits.items():
            table = read_shards(self.folder / name)
            self.vectors[name] = embed_queries(given, source, table["text"].to_pylist())
            self.relevant[name] = Relevant(
                *find_corpus_rows(table, "positives", DocumentRows(self.corpus["id"]))
            )
            self.seen[name] = find_seen(self.train, own)
        self.group_Q = number_groups(read_shards(self.folder / "valid"))
        labels = {name for query in self.train for name in query.positives}
        self.labelled = 4 * len(labels) >= len(self.documents)  # as `mine.candidates=auto` decides
        self.found: dict[str, list[Model]] = {}

    def make_model(self, map_DD: np.ndarray) -> Model:
        corpus_ND = self.vectors["corpus"] @ map_DD
        ranked = (
            rank_all(self.vectors[name] @ map_DD, corpus_ND, self.relevant[name])
            for name in ("valid", "test")
        )
        return Model(map_DD, *(one.per_query["map@25"] for one in ranked))

    def finetune(self, start: Model, path: str) -> list[Model]:
        """Return the model after each evaluation. path: names the start."""
        from ratchet.jobs.retrieval.finetune_embedder import Config

        if path in self.found:
            return self.found[path]
        query_QD, corpus_ND = (
            normalize(self.vectors[name] @ start.map_DD) for name in ("train", "corpus")
        )
        number, mined = path.count("/"), self.folder / f"mined-{len(self.found)}"
        seed = self.seed + number
        write_mined(
            mined,
            self.documents,
            self.train,
            query_QD @ corpus_ND.T,
            seed=seed,
            labelled=self.labelled,
        )
        epochs = LINEAR["epochs"] // self.given.evaluations
        values = {**LOOP, **LINEAR, "seed": seed, "epochs": epochs * self.given.evaluations}
        triplets = Triplets(read_shards(mined), self.corpus)
        maps = train_linear(
            make_config(Config, values, self.given.set), triplets, query_QD, corpus_ND
        )
        same_DD = np.eye(len(start.map_DD), dtype=np.float32)
        self.found[path] = [
            self.make_model(start.map_DD @ (same_DD + one)) for one in maps[epochs - 1 :: epochs]
        ]
        return self.found[path]

    def iterate(self, level: float) -> dict[str, Any]:
        """Return the metrics of the model that is kept at last on the test queries."""
        kept, path = self.make_model(np.eye(self.vectors["corpus"].shape[1], dtype=np.float32)), ""
        counts = dict.fromkeys(METRICS[3:], 0)
        for _ in range(self.given.iterations):
            found = self.finetune(kept, path)
            best = max(found, key=lambda model: model.valid_Q.mean())
            is_better, is_kept = (
                bool(best.test_Q.mean() > kept.test_Q.mean()),
                self.is_kept(kept, found, level),
            )
            counts["kept"] += is_kept
            counts["kept though worse"] += is_kept and not is_better
            counts["refused though better"] += is_better and not is_kept
            path += f"/{found.index(best) if is_kept else '-'}"
            kept = best if is_kept else kept
        parts: dict[str, Any] = {
            "map@25": slice(None),
            "seen": self.seen["test"],
            "unseen": ~self.seen["test"],
        }
        values = {name: kept.test_Q[some] for name, some in parts.items()}
        return {name: float(one.mean()) for name, one in values.items() if len(one)} | counts

    def sum_by_group(self, value_Q: np.ndarray) -> dict[str, list[float]]:
        """Return `Evaluation.sums` of a metric on `valid`."""
        unseen_Q = ~np.asarray(self.seen["valid"], bool)
        found = {"all": sum_by_group(value_Q, self.group_Q).tolist()}
        if unseen_Q.any() and not unseen_Q.all():
            value_Q = np.where(unseen_Q, value_Q, np.nan)
            found["unseen"] = sum_by_group(value_Q, self.group_Q).tolist()
        return found

    def is_kept(self, start: Model, found: list[Model], level: float) -> bool:
        from ratchet.jobs.retrieval.finetune_embedder import Config
        from ratchet.jobs.training.evaluation import decide
        from ratchet.jobs.training.schedule import TrainHistory

        means = [{"map@25": float(one.valid_Q.mean())} for one in (start, *found)]
        sums = [self.sum_by_group(one.valid_Q) for one in (start, *found)]
        best = int(np.argmax([one["map@25"] for one in means[1:]]))
        history = TrainHistory(
            start=means[0], start_sums=sums[0], evaluations=means[1:], sums=sums[1:], best=best
        )
        return not decide(Config(significance_level=level), history).reason


def normalize(vectors: np.ndarray) -> np.ndarray:
    """Return rows of length 1."""
    found: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


if __name__ == "__main__":
    main()
