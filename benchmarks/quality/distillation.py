"""What a strong teacher's scores are worth: an embedder finetuned on the same lists with and without them.

    python -m benchmarks.quality.distillation --data eedi/teacher14b_iter1_scored.jsonl --seeds 3 [--only "kl_div, T=5"]

A data set is a file of lists that a trained Qwen2.5-14B reranker has scored (FlagEmbedding JSONL with `pos_scores` and
`neg_scores`). Beside it lie `misconception_mapping.csv`, whose documents are all ranked, and `hn_mine_input.jsonl`,
whose other queries are the test. A query is seen if one of the lists has its label. MiniLM is trained with the settings
of the retrieval loop, in float32.
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

from benchmarks.quality.in_process import make_config, make_task, train
from benchmarks.quality.repeat import make_parser, repeat

LOOP: dict[str, Any] = {"epochs": 2, "learning_rate": 1e-3, "temperature": 0.05, "num_negatives": 8}
VARIANTS: dict[str, dict[str, Any]] = {
    "labels alone": {},
    "kl_div, T=1": {"distillation": "kl_div", "teacher_temperature": 1.0},
    "kl_div, T=5": {"distillation": "kl_div", "teacher_temperature": 5.0},
    "kl_div, T=5, weight 4": {"distillation": "kl_div", "teacher_temperature": 5.0, "distillation_weight": 4.0},
    "margin_mse, T=5": {"distillation": "margin_mse", "teacher_temperature": 5.0, "distillation_weight": 0.1},
    "m3_kd_loss, T=5": {"distillation": "m3_kd_loss", "teacher_temperature": 5.0},
}


def main() -> None:
    parser = make_parser(__doc__, list(VARIANTS), "distillation.jsonl")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    repeat(
        given,
        ("map@25", "seen", "unseen", "seconds"),
        lambda source, name, seed: measure(given, Path(source), VARIANTS[name], seed),
    )


def write(given: argparse.Namespace, source: Path, folder: Path, seed: int) -> None:
    """Write the shards corpus, mined (the teacher's lists) and valid (the test queries, drawn by the seed)."""
    import pyarrow as pa

    from ratchet.data.tables import CORPUS, MINED, QUERIES, SCORES, TEACHER_SCORES, write_shards

    with (source.parent / "misconception_mapping.csv").open(newline="") as file:
        corpus = [{"id": row["MisconceptionId"], "text": row["MisconceptionName"]} for row in csv.DictReader(file)]
    number = {row["text"].strip(): row["id"] for row in corpus}
    lists, pairs = (
        [json.loads(line) for line in path.read_text().splitlines()]
        for path in (source, source.parent / "hn_mine_input.jsonl")
    )
    taught = {row["query"] for row in lists}
    others = [row for row in pairs if row["query"] not in taught]
    drawn = np.random.default_rng(seed).permutation(len(others))[: given.held_out]
    known = {text.strip() for row in lists for text in row["pos"]}

    def names(row: dict[str, Any], key: str) -> list[str]:
        return [number[text.strip()] for text in row[key]]

    scores = {TEACHER_SCORES[f"{kind}s"]: f"{kind[:3]}_scores" for kind in ("positive", "negative")}
    mined = [
        {
            "id": str(n), "text": row["query"], "positives": names(row, "pos"), "negatives": names(row, "neg"),
            **{name: row[key] for name, key in scores.items()},
        }
        for n, row in enumerate(lists[: given.queries])
    ]
    tested = [
        {
            "id": str(n), "text": others[n]["query"], "positives": names(others[n], "pos"), "grades": [1],
            "seen": any(text.strip() in known for text in others[n]["pos"]),
        }
        for n in sorted(drawn)
    ]
    write_shards(folder / "corpus", corpus, CORPUS, 100_000)
    write_shards(folder / "mined", mined, pa.schema([*MINED, *((name, SCORES) for name in scores)]), 100_000)
    write_shards(folder / "valid", tested, pa.schema([*QUERIES, ("seen", pa.bool_())]), 100_000)


def measure(given: argparse.Namespace, source: Path, variant: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train, and return MAP@25 on the test after the last epoch."""
    import torch

    from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs
    from ratchet.jobs.retrieval.implementation.finetune_embedder import TrainTask
    from ratchet.models.model_files import MINILM, resolve

    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as name:
        folder, started = Path(name), time.perf_counter()
        write(given, source, folder, seed)
        config = make_config(Config, {**LOOP, "dtype": "float32", "seed": seed, **variant}, given.set)
        inputs = Inputs(resolve(MINILM), folder / "mined", folder / "corpus", folder / "valid")
        task = make_task(TrainTask, config, inputs, given.threads)
        train(task)
        seconds, found = time.perf_counter() - started, task.evaluate().metrics
    parts = {one: found[f"{one}/map@25"] for one in ("seen", "unseen")}
    return {"map@25": found["map@25"], **parts, "seconds": seconds}


if __name__ == "__main__":
    main()
