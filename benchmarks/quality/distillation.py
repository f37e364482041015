"""The effect of a strong teacher's scores: an embedder is finetuned on the same lists with and without these scores.

    python -m benchmarks.quality.distillation --data eedi/teacher14b_iter1_scored.jsonl --seeds 3 [--only m3_kd_loss]
    python -m benchmarks.quality.distillation --data eedi/teacher14b_iter1_scored.jsonl --linear --held-out 4000

A data set is a file of lists that a trained Qwen2.5-14B reranker has scored (FlagEmbedding JSONL with `pos_scores` and
`neg_scores`). In the same folder are `misconception_mapping.csv`, whose documents are all ranked, and
`hn_mine_input.jsonl`. Queries of the latter that have no list are the test queries. A query is seen if its label is a
positive of one of the lists.

MiniLM is trained in float32, with the learning rate and temperature of the retrieval loop. With `--linear` MiniLM is
frozen, and a linear map of its vectors is trained, `x + xW`. This takes seconds, and shows the effect of a setting
before an hour is spent on it. In the variant `margin 8` the teacher's temperature is chosen such that its mean margin
is 8 instead of 4. In `noise 10` normal noise with a standard deviation of 10 is added to the teacher's scores.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.quality.ablation import embed, rank_all
from benchmarks.quality.in_process import LINEAR, make_config, make_task, train, train_linear
from benchmarks.quality.repeat import make_parser, repeat

LOOP: dict[str, Any] = {
    "epochs": 4,
    "learning_rate": 1e-3,
    "temperature": 0.05,
    "num_negatives": 15,
}
KL: dict[str, Any] = {"distillation": "kl_div"}
M3: dict[str, Any] = {"distillation": "m3_kd_loss"}
VARIANTS: dict[str, dict[str, Any]] = {
    "labels alone": {},
    "kl_div": KL,
    "m3_kd_loss": M3,
    "margin_mse": {"distillation": "margin_mse", "distillation_weight": 0.1},
    **{
        f"m3_kd_loss, margin {margin:g}": {**M3, "margin": margin}
        for margin in (12.0, 8.0, 2.5, 1.5)
    },
    **{
        f"{name}, noise {noise}": {**loss, "noise": noise}
        for noise in (5, 10)
        for name, loss in {"kl_div": KL, "m3_kd_loss": M3}.items()
    },
}
METRICS = ("map@25", "seen", "unseen", "accuracy", "seconds")
"""accuracy: the fraction of lists in which the teacher puts the positive first."""


def main() -> None:
    parser = make_parser(__doc__, list(VARIANTS), "distillation.jsonl")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--linear", action="store_true", help="train a linear map of frozen vectors"
    )
    parser.add_argument(
        "--vectors",
        type=Path,
        default=Path("distillation-vectors"),
        help="folder for frozen vectors",
    )
    given = parser.parse_args()
    if given.linear:
        given.out = given.out.with_stem(f"{given.out.stem}-linear")
    repeat(
        given,
        METRICS,
        lambda source, name, seed: measure(given, Path(source), VARIANTS[name], seed),
    )


def write(given: argparse.Namespace, source: Path, folder: Path, seed: int, noise: float) -> None:
    """Write the shards corpus, mined (the teacher's lists) and valid (the test queries, drawn by the seed)."""
    import pyarrow as pa

    from ratchet.data.tables import CORPUS, MINED, QUERIES, SCORES, TEACHER_SCORES, write_shards

    with (source.parent / "misconception_mapping.csv").open(newline="") as file:
        corpus = [
            {"id": row["MisconceptionId"], "text": row["MisconceptionName"]}
            for row in csv.DictReader(file)
        ]
    number = {row["text"].strip(): row["id"] for row in corpus}
    lists, pairs = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (source, source.parent / "hn_mine_input.jsonl")
    )
    taught = {row["query"] for row in lists}
    others = [row for row in pairs if row["query"] not in taught]
    random = np.random.default_rng(seed)
    drawn = random.permutation(len(others))[: given.held_out]
    known = {text.strip() for row in lists for text in row["pos"]}

    def names(row: dict[str, Any], key: str) -> list[str]:
        return [number[text.strip()] for text in row[key]]

    scores = {TEACHER_SCORES[f"{kind}s"]: f"{kind[:3]}_scores" for kind in ("positive", "negative")}
    mined = [
        {
            "id": str(n),
            "text": row["query"],
            "positives": names(row, "pos"),
            "negatives": names(row, "neg"),
            **{name: random.normal(row[key], noise).tolist() for name, key in scores.items()},
        }
        for n, row in enumerate(lists[: given.queries])
    ]
    tested = [
        {
            "id": str(n),
            "text": others[n]["query"],
            "positives": names(others[n], "pos"),
            "grades": [1],
            "seen": any(text.strip() in known for text in others[n]["pos"]),
        }
        for n in sorted(drawn)
    ]
    write_shards(folder / "corpus", corpus, CORPUS, 100_000)
    write_shards(
        folder / "mined", mined, pa.schema([*MINED, *((name, SCORES) for name in scores)]), 100_000
    )
    write_shards(folder / "valid", tested, pa.schema([*QUERIES, ("seen", pa.bool_())]), 100_000)


def measure(
    given: argparse.Namespace, source: Path, variant: dict[str, Any], seed: int
) -> dict[str, Any]:
    """Train, and return MAP@25 on the test after the last epoch."""
    import torch

    from ratchet.data.tables import read_shards
    from ratchet.data.triplets import Triplets
    from ratchet.jobs.retrieval.finetune_embedder import Config

    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(given, source, folder, seed, variant.get("noise", 0.0))
        triplets = Triplets(
            read_shards(folder / "mined"), read_shards(folder / "corpus"), teacher=True
        )
        values = {name: value for name, value in variant.items() if name not in ("noise", "margin")}
        if "margin" in variant:
            values["teacher_temperature"] = triplets.teacher_margin / variant["margin"]
        values = {
            **LOOP,
            **(LINEAR if given.linear else {}),
            "dtype": "float32",
            "seed": seed,
            **values,
        }
        config = make_config(Config, values, given.set)
        started = time.perf_counter()
        found = (train_map if given.linear else train_model)(given, config, folder, triplets)
        return {
            **found,
            "accuracy": compute_accuracy(folder),
            "seconds": time.perf_counter() - started,
        }


def compute_accuracy(folder: Path) -> float:
    from ratchet.data.tables import TEACHER_SCORES, read_shards

    table = read_shards(folder / "mined")
    lists = (table[TEACHER_SCORES[name]].to_pylist() for name in ("positives", "negatives"))
    return float(np.mean([max(right) > max(wrong) for right, wrong in zip(*lists, strict=True)]))


def train_model(
    given: argparse.Namespace, config: Any, folder: Path, triplets: Any
) -> dict[str, float]:
    from ratchet.jobs.retrieval.embedder_training import EmbedderTask
    from ratchet.jobs.retrieval.finetune_embedder import Inputs
    from ratchet.models.model_files import MINILM, resolve

    inputs = Inputs(resolve(MINILM), folder / "mined", folder / "corpus", folder / "valid")
    task = make_task(EmbedderTask, config, inputs, given.threads)
    train(task)
    found = task.evaluate().metrics
    unseen, share = found["unseen/map@25"], 1 - task.valid["seen"].to_numpy().mean()
    return {
        "map@25": found["map@25"],
        "seen": (found["map@25"] - share * unseen) / (1 - share),
        "unseen": unseen,
    }


def train_map(
    given: argparse.Namespace, config: Any, folder: Path, triplets: Any
) -> dict[str, float]:
    from ratchet.data.tables import DocumentRows, read_shards
    from ratchet.data.triplets import find_corpus_rows
    from ratchet.models.search.ranks import Relevant

    test, corpus = read_shards(folder / "valid"), read_shards(folder / "corpus")
    query_QD, test_QD = (
        embed(given, one.to_pylist(), "query") for one in (triplets.query_text, test["text"])
    )
    corpus_ND = embed(given, corpus["text"].to_pylist(), "passage")
    map_DD = train_linear(config, triplets, query_QD, corpus_ND)[-1]
    relevant = Relevant(*find_corpus_rows(test, "positives", DocumentRows(corpus["id"])))
    seen_Q = test["seen"].to_numpy()
    found = rank_all(
        test_QD + test_QD @ map_DD, corpus_ND + corpus_ND @ map_DD, relevant
    ).per_query["map@25"]
    return {"map@25": found.mean(), "seen": found[seen_Q].mean(), "unseen": found[~seen_Q].mean()}


if __name__ == "__main__":
    main()
