"""Errors and power of the test that decides whether a finetuned embedder is kept, by the number of pairs.

    python -m benchmarks.quality.decision --data generated --pairs 20 40 80 200 1000 --repeats 100

Pairs are drawn and split as `prepare` splits them. A linear map of MiniLM's vectors is trained on the training pairs,
and the best of four evaluations is kept if `finetune_embedder` would keep it: with fewer than 200 pairs by
cross-validation of all of them, else by `valid`. All
pairs that were not drawn are the truth: their MAP@25 says whether the model is better.

- `error`: fraction of models that are kept though their training labels are exchanged at random, so nothing is learned.
- `power`: fraction of models that are kept, of those that are better by at least `--gain` of MAP@25.
- `valid only`: the same fraction, if `valid` always decides (of models that are trained on fewer pairs).
- `kept though worse`: fraction of all trained models that are kept and have a lower MAP@25 than the base.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.quality.ablation import LOOP, embed
from benchmarks.quality.in_process import LINEAR, make_config, train_linear
from benchmarks.quality.repeat import HELP
from benchmarks.quality.retrieval_sets import load, write_corpus, write_mined
from ratchet.data.retrieval.splits import split_queries
from ratchet.data.tables import DocumentRows, read_shards
from ratchet.data.triplets import Triplets, find_corpus_rows
from ratchet.jobs.retrieval.finetune_embedder import Config
from ratchet.jobs.retrieval.prepare import FEW_GROUPS
from ratchet.jobs.training.cross_validation import join_histories
from ratchet.jobs.training.evaluation import Evaluation, decide, evaluate_rows
from ratchet.jobs.training.finetuning import MIN_CHANGED
from ratchet.jobs.training.schedule import TrainHistory, is_better
from ratchet.models.search import held_out_loss
from ratchet.models.search.ranks import Relevant, rank_relevant, score_relevant
from ratchet.recipes.parts.retrieval_loop import INNER_FOLDS

EVALUATIONS = 4
EPOCHS = LINEAR["epochs"] // EVALUATIONS
CONFIG = make_config(Config, {**LOOP, **LINEAR, "epochs": EPOCHS * EVALUATIONS}, [])
TRUTH = 1000
"""Pairs at most that tell whether a model is better."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "") + HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="generated", metavar="[KIND=]PATH")
    parser.add_argument("--pairs", type=int, nargs="+", default=[20, 40, 80, 200, 1000])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--least-changed", type=int, default=MIN_CHANGED)
    parser.add_argument("--gain", type=float, default=0.01)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--vectors",
        type=Path,
        default=Path("ablation-vectors"),
        help="folder for the base's vectors",
    )
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    simulation = Simulation(given)
    print("| pairs | valid | error | power | valid only | kept though worse | better |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for pairs in given.pairs:
        print(simulation.describe(pairs), flush=True)


class Simulation:
    """A data set with the base's vectors of all texts."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, data = given, load(given.data)
        self.documents, self.queries = list(data.corpus), list(data.queries)
        self.folder = Path(tempfile.mkdtemp())
        write_corpus(self.folder / "corpus", self.documents)
        self.corpus = read_shards(self.folder / "corpus")
        self.corpus_ND = embed(given, [one.text for one in self.documents], "passage")
        vectors_QD = embed(given, [one.text for one in self.queries], "query")
        self.vector_of = {
            one.id: vector for one, vector in zip(self.queries, vectors_QD, strict=True)
        }

    def describe(self, pairs: int) -> str:
        """Return the row of the table for a number of pairs."""
        learned = list(self.repeat(pairs, exchange=False))
        exchanged = list(self.repeat(pairs, exchange=True))
        better = [one for one in learned if one["gain"] >= self.given.gain]
        worse = [one for one in learned if one["kept"] and one["gain"] < 0]
        cells = [
            learned[0]["valid"],
            format_share(sum(one["kept"] for one in exchanged), len(exchanged)),
            format_share(sum(one["kept"] for one in better), len(better)),
            format_share(sum(one["kept by valid"] for one in better), len(better)),
            format_share(len(worse), len(learned)),
            format_share(len(better), len(learned)),
        ]
        return "| " + " | ".join(map(str, [pairs, *cells])) + " |"

    def repeat(self, pairs: int, *, exchange: bool) -> Iterator[dict[str, Any]]:
        for seed in range(self.given.repeats):
            random = np.random.default_rng([seed, pairs])
            order = random.permutation(len(self.queries))
            drawn = [replace_group(self.queries[n]) for n in order[:pairs]]
            truth = [self.queries[n] for n in order[pairs : pairs + TRUTH]]
            if exchange:
                labels = random.permutation(len(drawn))
                drawn = [
                    one._replace(positives=drawn[n].positives)
                    for one, n in zip(drawn, labels, strict=True)
                ]
            yield self.measure(drawn, truth, seed)

    def measure(self, drawn: list[Any], truth: list[Any], seed: int) -> dict[str, Any]:
        """Train, decide, and compare the model that training offers with the base on the truth."""
        splits = split_queries(drawn, 0.2, 0.1, seed)
        train = list(splits["train"])
        valid = list(splits["valid"])
        maps = self.train(train, seed)
        history = self.follow(maps, valid)
        alone = decide(CONFIG, history)
        decision = alone
        if len(drawn) < FEW_GROUPS:
            fold_Q = np.random.default_rng(seed).permutation(len(drawn)) % INNER_FOLDS
            histories = []
            for fold in range(INNER_FOLDS):
                held_out = [one for one, own in zip(drawn, fold_Q, strict=True) if own == fold]
                others = [one for one, own in zip(drawn, fold_Q, strict=True) if own != fold]
                histories.append(self.follow(self.train(others, seed), held_out))
            history = join_histories(CONFIG.metric, histories, len(drawn))
            decision = decide(CONFIG, history, least_changed=self.given.least_changed)
            maps = self.train(drawn, seed)
        assert history.best is not None
        before, after = (
            self.evaluate(truth, one) for one in (np.zeros_like(maps[0]), maps[history.best])
        )
        return {
            "valid": len(valid),
            "kept": not decision.reason,
            "kept by valid": not alone.reason,
            "gain": after.metrics["map@25"] - before.metrics["map@25"],
        }

    def train(self, train: list[Any], seed: int) -> list[np.ndarray]:
        """Return the map after each evaluation."""
        query_QD = np.stack([self.vector_of[one.id] for one in train])
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            write_mined(Path(folder), self.documents, train, query_QD @ self.corpus_ND.T, seed=seed)
            triplets = Triplets(read_shards(Path(folder)), self.corpus)
        config = replace(CONFIG, seed=seed)
        return train_linear(config, triplets, query_QD, self.corpus_ND)[EPOCHS - 1 :: EPOCHS]

    def follow(self, maps: list[np.ndarray], held_out: list[Any]) -> TrainHistory:
        """Return the history of the evaluations on held-out queries."""
        start = self.evaluate(held_out, np.zeros_like(maps[0]))
        history = TrainHistory(start=start.metrics, start_sums=start.sums)
        for number, map_DD in enumerate(maps):
            found = self.evaluate(held_out, map_DD)
            history.evaluations.append(found.metrics)
            history.sums.append(found.sums)
            if history.best is None or is_better(
                CONFIG.metric, found.metrics, history.evaluations[history.best]
            ):
                history.best = number
        return history

    def evaluate(self, queries: list[Any], map_DD: np.ndarray) -> Evaluation:
        rows = {
            "id": [one.id for one in queries],
            "positives": [list(one.positives) for one in queries],
        }
        table = pa.table({**rows, "group": rows["id"]})
        relevant = Relevant(*find_corpus_rows(table, "positives", DocumentRows(self.corpus["id"])))
        own_QD = np.stack([self.vector_of[one.id] for one in queries])
        query_QD, corpus_ND = (
            normalize(vectors + vectors @ map_DD) for vectors in (own_QD, self.corpus_ND)
        )
        ranks_R = rank_relevant(query_QD, relevant, lambda: [(0, corpus_ND)])
        nobody_Q = np.full(len(queries), -1)
        exponentials_QT = held_out_loss.sum_exponentials(query_QD, corpus_ND, 0, nobody_Q, "cpu")
        scores_R = score_relevant(query_QD, relevant, [(0, corpus_ND)])
        losses_Q = held_out_loss.compute_losses(exponentials_QT, scores_R, relevant)
        return evaluate_rows(table, "map@25", ranks_R, relevant, losses_Q=losses_Q)


def replace_group(query: Any) -> Any:
    """Return the query as a group of its own, in no split."""
    return query._replace(group=query.id, split=None)


def normalize(vectors: np.ndarray) -> np.ndarray:
    """Return rows of length 1."""
    found: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(
        np.float32
    )
    return found


def format_share(part: int, whole: int) -> str:
    """Return a fraction with its counts."""
    return f"{part / whole:.2f} ({part}/{whole})" if whole else "–"


if __name__ == "__main__":
    main()
