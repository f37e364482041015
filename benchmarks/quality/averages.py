"""The effect of averaging the weights of several models: of iterations, of seeds, and of kinds of negatives.

    python -m benchmarks.quality.averages --data eedi/ --queries 1500 --held-out 600 --seeds 3 --set epochs=2

For each seed MiniLM mines negatives, an adapter is trained, the resulting model mines again, and the adapter is trained
further. This is done with negatives from labelled documents, again with another training seed, and with negatives from
the whole corpus. All weights are averaged, with the adapters merged, in float32.
"""

from __future__ import annotations

import argparse
import functools
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.ablation import LOOP, rank_all
from benchmarks.quality.in_process import find_device, make_config, make_task, train
from benchmarks.quality.repeat import make_parser, repeat
from benchmarks.quality.retrieval_sets import write_case, write_mined
from ratchet.data.retrieval import Query
from ratchet.data.retrieval.splits import find_seen
from ratchet.data.tables import DocumentRows, read_shards
from ratchet.data.triplets import find_corpus_rows
from ratchet.models.search.ranks import Relevant

ITERATIONS = 2
KINDS = {"labelled": (True, 0), "other seed": (True, 500), "corpus": (False, 0)}
"""Whether negatives are drawn from labelled documents only, and what is added to the seed of training."""
AVERAGES: dict[str, list[tuple[str, int]]] = {
    "labelled negatives": [("labelled", 1)],
    "labelled negatives, another seed": [("other seed", 1)],
    "negatives from the corpus": [("corpus", 1)],
    "mean of both iterations": [("labelled", 0), ("labelled", 1)],
    "mean of two seeds": [("labelled", 1), ("other seed", 1)],
    "mean of both kinds of negatives": [("labelled", 1), ("corpus", 1)],
    "mean of two seeds and both kinds": [("labelled", 1), ("other seed", 1), ("corpus", 1)],
}
"""Models whose mean is evaluated: the kind, and the iteration."""

Weights = dict[str, Any]
"""Name -> tensor, of all weights of a model."""


def main() -> None:
    parser = make_parser(__doc__, list(AVERAGES), "averages.jsonl")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    cases = functools.lru_cache(1)(lambda source, seed: Case(given, source, seed))
    repeat(
        given,
        ("map@25", "r@25", "seen", "unseen"),
        lambda source, name, seed: cases(source, seed).evaluate(AVERAGES[name]),
    )


class Case:
    """A data set, split with a seed, and the models that are trained on it."""

    def __init__(self, given: argparse.Namespace, source: str, seed: int) -> None:
        import torch

        from ratchet.models.embedder import encoder
        from ratchet.models.model_files import MINILM, resolve

        torch.set_num_threads(given.threads)
        self.given, self.seed, self.folder = given, seed, Path(tempfile.mkdtemp())
        most = {"train": given.queries, "valid": given.held_out, "test": given.held_out}
        self.documents, splits = write_case(self.folder, source, seed, most, given.unseen)
        self.train, self.test = splits["train"], splits["test"]
        rows = find_corpus_rows(
            read_shards(self.folder / "test"),
            "positives",
            DocumentRows(read_shards(self.folder / "corpus")["id"]),
        )
        self.relevant, self.seen_Q = Relevant(*rows), find_seen(self.train, self.test)
        self.base = resolve(MINILM)
        self.encoder = encoder.load(self.base, dtype="float32", device=find_device())
        self.start: Weights = {
            name: one.detach().clone() for name, one in self.encoder.model.state_dict().items()
        }
        self.trained: dict[str, list[Weights]] = {}

    def embed(self, weights: Weights, queries: list[Query]) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors of queries and of the corpus."""
        from ratchet.models.loading import eval_mode

        self.encoder.model.load_state_dict(weights)
        with eval_mode(self.encoder.model):
            texts = [one.text for one in self.documents]
            return self.encoder.encode([one.text for one in queries], "query"), self.encoder.encode(
                texts, "passage"
            )

    def finetune(self, kind: str) -> list[Weights]:
        """Return the weights after each iteration."""
        from ratchet.jobs.retrieval.embedder_training import EmbedderTask
        from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs

        labelled, added = KINDS[kind]
        found: list[Weights] = []
        adapter: Path | None = None
        for number in range(ITERATIONS):
            query_QD, corpus_ND = self.embed(found[-1] if found else self.start, self.train)
            seed, mined = self.seed + number + added, self.folder / f"{kind}-{number}"
            write_mined(
                mined,
                self.documents,
                self.train,
                query_QD @ corpus_ND.T,
                seed=seed,
                labelled=labelled,
            )
            values = {**LOOP, "dtype": "float32", "seed": seed, "start_from": "current_best"}
            inputs = Inputs(
                self.base, mined, self.folder / "corpus", self.folder / "test", current_best=adapter
            )
            task = make_task(
                EmbedderTask,
                make_config(Config, values, self.given.set),
                inputs,
                self.given.threads,
            )
            train(task)
            found.append(merge(task.model, self.start))
            adapter = self.folder / f"{kind}-{number}-adapter"
            task.save(adapter)
        return found

    def evaluate(self, models: list[tuple[str, int]]) -> dict[str, float]:
        """Return the metrics of the mean of some models."""
        for kind, _ in models:
            if kind not in self.trained:
                self.trained[kind] = self.finetune(kind)
        own = [self.trained[kind][number] for kind, number in models]
        mean = {
            name: sum(one[name] for one in own) / len(own) if start.is_floating_point() else start
            for name, start in self.start.items()
        }
        found = rank_all(*self.embed(mean, self.test), self.relevant)
        row = {name: float(found.values[name]) for name in ("map@25", "r@25")}
        parts = {"seen": self.seen_Q, "unseen": ~self.seen_Q}
        return row | {
            name: float(found.per_query["map@25"][some_Q].mean())
            for name, some_Q in parts.items()
            if some_Q.any()
        }


def merge(model: Any, start: Weights) -> Weights:
    """Return the weights of a PEFT model, by their names in the base, with the adapter merged."""
    model.merge_adapter()
    own = {
        name.replace("base_layer.", ""): one
        for name, one in model.base_model.model.state_dict().items()
    }
    merged = {name: own[name].detach().clone() for name in start}
    model.unmerge_adapter()
    return merged


if __name__ == "__main__":
    main()
