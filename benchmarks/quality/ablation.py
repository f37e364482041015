"""The effect of each setting of the embedder's finetuning: the same queries, one setting changed, several seeds.

    python -m benchmarks.quality.ablation --data eedi/ --seeds 3 [--only lora full] [--set epochs=1]
    python -m benchmarks.quality.ablation --data generated squad=dev-v1.1.json stacks=grouped_by_section.jsonl

For each seed the queries are split anew by group, MiniLM mines negatives once, and every variant trains on them in
float32 and ranks the whole corpus for the held-out queries. With `--linear` MiniLM is frozen, and a linear map of its
vectors is trained instead, which takes seconds per variant. This is suitable for settings of mining, of the loss and of
the texts, but not for settings of the model, guides and batches of neighbours.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.in_process import (
    LINEAR,
    find_device,
    make_config,
    make_task,
    train,
    train_linear,
)
from benchmarks.quality.repeat import make_parser, repeat
from benchmarks.quality.retrieval_sets import load, split, write_corpus, write_mined, write_queries
from ratchet.data.retrieval.splits import find_seen
from ratchet.data.tables import DocumentRows
from ratchet.data.triplets import find_corpus_rows
from ratchet.models.search.rank_metrics import RankMetrics, compute_rank_metrics
from ratchet.models.search.ranks import Relevant

LOOP: dict[str, Any] = {"epochs": 4, "learning_rate": 1e-3, "temperature": 0.05}
"""The settings of the retrieval loop."""
FULL: dict[str, Any] = {"method": "full", "learning_rate": 2e-4}
VARIANTS: dict[str, dict[str, Any]] = {
    "zero-shot": {"epochs": 0},
    "lora": {},
    "lora, labelled negatives": {"labelled": True},
    "lora, rank 128": {"lora_r": 128, "lora_alpha": 256.0},
    "lora, 1 epoch": {"epochs": 1},
    "lora, rate 3e-4": {"learning_rate": 3e-4},
    "full": FULL,
    "full, rate 1e-4": {**FULL, "learning_rate": 1e-4},
    "full, 1 epoch": {**FULL, "epochs": 1},
    "full, temperature 0.02": {**FULL, "temperature": 0.02},
    "full, temperature 0.07": {**FULL, "temperature": 0.07},
    "full, temperature 0.1": {**FULL, "temperature": 0.1},
    "full, learned temperature": {**FULL, "temperature_rate": 5.0},
    "full, mean of 4 epochs": {**FULL, "averaged_epochs": 4},
    "full, below 0.95 of the positive": {**FULL, "percent_of_positive": 0.95},
    "full, window 0 to 50": {**FULL, "window": (0, 50)},
    "full, labelled negatives": {**FULL, "labelled": True},
    "full, 15 negatives": {**FULL, "num_negatives": 15},
    "full, in-batch only": {**FULL, "num_negatives": 0},
    "full, batches of neighbours": {**FULL, "neighbours": True},
    "full, mean of 3 models": {**FULL, "models": 3},
    "full, labelled negatives, mean of 3 models": {**FULL, "labelled": True, "models": 3},
    "full, matryoshka 64, 128": {**FULL, "matryoshka_dims": (64, 128)},
}
MINING = ("window", "percent_of_positive", "absolute_margin", "num_mined", "labelled")
"""Settings of a variant that are those of `mine`."""
LINEAR_ONLY = ("temperature_rate", "averaged_epochs")
"""A setting of `train_linear`, and the number of last epochs whose mean is evaluated."""
OTHERS = ("neighbours", "models", *LINEAR_ONLY)
"""Batches are made of similar queries; the weights of so many models, which
differ in their seeds, are averaged. All further settings are the finetune's."""
DIMS = (64, 128)
METRICS = (
    "map@25",
    "ndcg@10",
    "r@25",
    "seen",
    "unseen",
    *(f"{dim} dimensions" for dim in DIMS),
    "seconds",
)


def main() -> None:
    parser = make_parser(__doc__, list(VARIANTS), "ablation.jsonl")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--interpolate",
        type=float,
        nargs="*",
        default=[],
        help="base + share * (trained - base) too",
    )
    parser.add_argument(
        "--linear", action="store_true", help="train a linear map of frozen vectors"
    )
    parser.add_argument(
        "--vectors",
        type=Path,
        default=Path("ablation-vectors"),
        help="folder for the base's vectors",
    )
    given = parser.parse_args()
    if given.linear:
        given.out = given.out.with_stem(f"{given.out.stem}-linear")
    measure_one = measure_linear if given.linear else measure
    repeat(
        given, METRICS, lambda source, name, seed: measure_one(given, source, VARIANTS[name], seed)
    )


def embed(given: argparse.Namespace, texts: Sequence[str], role: Any) -> np.ndarray:
    """Return the base's vectors of some texts; they are kept in a file."""
    from ratchet.models.embedder import encoder
    from ratchet.models.model_files import MINILM, resolve

    name = hashlib.sha256("\0".join([role, *texts]).encode()).hexdigest()[:16]
    file = given.vectors / f"{name}.npy"
    if not file.exists():
        given.vectors.mkdir(parents=True, exist_ok=True)
        np.save(
            file,
            encoder.load(resolve(MINILM), dtype="float32", device=find_device()).encode(
                texts, role
            ),
        )
    vectors: np.ndarray = np.load(file)
    return vectors


def embed_queries(given: argparse.Namespace, source: str, texts: Sequence[str]) -> np.ndarray:
    """Return the base's vectors of some queries of a data set. All of its queries are embedded once, for all seeds."""
    known = [query.text for query in load(source).queries]
    vector_of = dict(zip(known, embed(given, known, "query"), strict=True))
    return np.stack([vector_of[text] for text in texts])


def write(
    given: argparse.Namespace, folder: Path, source: str, variant: dict[str, Any], seed: int
) -> np.ndarray:
    """Write the shards corpus, mined and valid (the held-out queries). Return which of these have a label that training
    has seen, bool [Q]."""
    data = load(source)
    splits = split(
        data.queries, seed, {"train": given.queries, "test": given.held_out}, given.unseen
    )
    train, test = splits["train"], splits["test"]
    documents = list(data.corpus)
    corpus_ND = embed(given, [one.text for one in documents], "passage")
    write_corpus(folder / "corpus", documents)
    query_QD = embed_queries(given, source, [query.text for query in train])
    mining = {name: value for name, value in variant.items() if name in MINING}
    write_mined(folder / "mined", documents, train, query_QD @ corpus_ND.T, seed=seed, **mining)
    write_queries(folder / "valid", test)
    return find_seen(train, test)


def measure(
    given: argparse.Namespace, source: str, variant: dict[str, Any], seed: int
) -> dict[str, Any]:
    """Train, and return the metrics on the held-out queries after the last epoch."""
    import torch

    from ratchet.jobs.retrieval.embedder_training import EmbedderTask
    from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs
    from ratchet.models.model_files import MINILM, resolve

    if wrong := [name for name in LINEAR_ONLY if name in variant]:
        sys.exit(f"{wrong[0]}: only measured with --linear")
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen_Q = write(given, folder, source, variant, seed)
        started = time.perf_counter()
        values = {**LOOP, "dtype": "float32"}
        values |= {name: value for name, value in variant.items() if name not in MINING + OTHERS}
        inputs = Inputs(resolve(MINILM), folder / "mined", folder / "corpus", folder / "valid")
        kept: list[Any] = []
        for number in range(variant.get("models", 1)):
            config = make_config(Config, {**values, "seed": seed + 1000 * number}, given.set)
            task = make_task(EmbedderTask, config, inputs, given.threads)
            if variant.get("neighbours"):
                queries = task.triplets.query_text.to_pylist()
                group_neighbours(task.triplets, embed(given, queries, "query"))
            trained = [weight for weight in task.model.parameters() if weight.requires_grad]
            # The weights of an adapter that changes nothing: its B are 0, so that a share of B is that of the update.
            start = [weight.detach().clone() for weight in trained]
            total = train(task)
            own = [weight.detach().clone() for weight in trained]
            kept = [
                mean + (now - mean) / (number + 1)
                for mean, now in zip(kept or own, own, strict=True)
            ]
        seconds = time.perf_counter() - started
        row: dict[str, Any] = {"steps": total, "seconds": seconds}
        for share in (1.0, *given.interpolate):
            with torch.no_grad():
                for weight, base, now in zip(trained, start, kept, strict=True):
                    weight.copy_(
                        now
                        if task.config.method == "lora" and base.any()
                        else base + share * (now - base)
                    )
            label, found = (
                "" if share == 1 else f"/{share:g}",
                evaluate(folder, seen_Q, *embed_held_out(task)),
            )
            row |= {f"{name}{label}": value for name, value in found.items()}
    return row


def measure_linear(
    given: argparse.Namespace, source: str, variant: dict[str, Any], seed: int
) -> dict[str, Any]:
    """Train a linear map of the base's vectors, and return the metrics on the held-out queries."""
    import torch

    from ratchet.data.tables import read_shards
    from ratchet.data.triplets import Triplets
    from ratchet.jobs.retrieval.finetune_embedder import Config

    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen_Q = write(given, folder, source, variant, seed)
        started = time.perf_counter()
        values = {**LOOP, **variant, **(LINEAR if variant.get("epochs") != 0 else {})}
        values = {name: value for name, value in values.items() if name not in MINING + OTHERS}
        seeds = [seed + 1000 * number for number in range(variant.get("models", 1))]
        configs = [make_config(Config, {**values, "seed": one}, given.set) for one in seeds]
        corpus, test = read_shards(folder / "corpus"), read_shards(folder / "valid")
        triplets = Triplets(read_shards(folder / "mined"), corpus)
        corpus_ND = embed(given, corpus["text"].to_pylist(), "passage")
        train_QD, test_QD = (
            embed_queries(given, source, column.to_pylist())
            for column in (triplets.query_text, test["text"])
        )
        rate, last = variant.get("temperature_rate", 0.0), variant.get("averaged_epochs", 1)
        maps = [
            train_linear(one, triplets, train_QD, corpus_ND, temperature_rate=rate)[-last:]
            for one in configs
        ]
        map_DD = np.mean(maps, (0, 1))
        seconds = time.perf_counter() - started
        mapped = (vectors + vectors @ map_DD for vectors in (test_QD, corpus_ND))
        return {"seconds": seconds, **evaluate(folder, seen_Q, *mapped)}


def group_neighbours(triplets: Any, query_QD: np.ndarray) -> None:
    """Make batches of similar queries: halve them along a random direction until a part is a batch."""

    def halve(rows: np.ndarray, parts: int, random: np.random.Generator) -> list[np.ndarray]:
        if parts == 1:
            return [rows]
        along = query_QD[rows] @ random.standard_normal(query_QD.shape[1])
        first = len(rows) * (parts // 2) // parts
        rows = rows[np.argsort(along)]
        return halve(rows[:first], parts // 2, random) + halve(
            rows[first:], parts - parts // 2, random
        )

    def split_epoch(epoch: int) -> list[np.ndarray]:
        random = np.random.default_rng([triplets.seed, epoch])
        parts = halve(np.arange(len(query_QD)), triplets.num_batches, random)
        return [parts[i] for i in random.permutation(len(parts))]

    triplets.split_epoch = split_epoch


def embed_held_out(task: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of held-out queries and of the corpus, by the model as it is."""
    from ratchet.models.loading import eval_mode

    with eval_mode(task.model):
        query_QD = task.encoder.encode(task.valid["text"].to_pylist(), "query")
        return query_QD, task.encoder.encode(task.corpus["text"].to_pylist(), "passage")


def evaluate(
    folder: Path, seen_Q: np.ndarray, query_QD: np.ndarray, corpus_ND: np.ndarray
) -> dict[str, float]:
    """Return the metrics of vectors of held-out queries and of the corpus: also MAP@25 by their first dimensions."""
    from ratchet.data.tables import read_shards

    test, corpus = read_shards(folder / "valid"), read_shards(folder / "corpus")
    relevant = Relevant(*find_corpus_rows(test, "positives", DocumentRows(corpus["id"])))
    found = rank_all(query_QD, corpus_ND, relevant)
    row = {name: found.values[name] for name in ("map@25", "ndcg@10", "r@25")}
    for dim in DIMS:  # a query's length changes no order
        row[f"{dim} dimensions"] = rank_all(query_QD[:, :dim], corpus_ND[:, :dim], relevant).values[
            "map@25"
        ]
    for name, some_Q in (("seen", seen_Q), ("unseen", ~seen_Q)):
        if some_Q.any():
            row |= {
                name: float(found.per_query["map@25"][some_Q].mean()),
                f"{name}/queries": int(some_Q.sum()),
            }
    return row


def rank_all(query_QD: np.ndarray, corpus_ND: np.ndarray, relevant: Relevant) -> RankMetrics:
    """Return the metrics of a ranking by cosine."""
    score_QN = query_QD @ (corpus_ND / np.linalg.norm(corpus_ND, axis=1, keepdims=True)).T
    own_R = score_QN[relevant.query_R, relevant.indices]
    return compute_rank_metrics(
        1 + (score_QN[relevant.query_R] > own_R[:, None]).sum(1), relevant, [10, 25]
    )


if __name__ == "__main__":
    main()
