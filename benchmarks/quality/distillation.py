"""What a strong teacher's scores are worth: an embedder finetuned on the same lists with and without them.

    python -m benchmarks.quality.distillation --data eedi/ [--lists teacher14b_iter1_scored.jsonl] [--seeds 3]

The lists are those of a trained Qwen2.5-14B reranker (FlagEmbedding JSONL with `pos_scores` and `neg_scores`). All
other pairs of `hn_mine_input.jsonl` are the test, against all documents of `misconception_mapping.csv`. MiniLM, LoRA,
float32, the settings of the retrieval loop. Each row is a seed; then means with standard deviations, and paired
differences to the run without a teacher, with the standard error over seeds. Rows are appended to `--out`, and found
there again.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

VARIANTS: dict[str, dict[str, Any]] = {
    "labels alone": {"distillation": "none"},
    "kl_div, T=1": {"distillation": "kl_div", "teacher_temperature": 1.0},
    "kl_div, T=5": {"distillation": "kl_div", "teacher_temperature": 5.0},
    "kl_div, T=5, weight 4": {"distillation": "kl_div", "teacher_temperature": 5.0, "distillation_weight": 4.0},
    "margin_mse, T=5": {"distillation": "margin_mse", "teacher_temperature": 5.0, "distillation_weight": 0.1},
    "m3_kd_loss, T=5": {"distillation": "m3_kd_loss", "teacher_temperature": 5.0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--lists", default="teacher14b_iter1_scored.jsonl")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--negatives", type=int, default=8)
    parser.add_argument("--queries", type=int, default=1200, help="test queries")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="further settings of all variants")
    parser.add_argument("--only", nargs="*", default=[], metavar="VARIANT", help=f"of: {'; '.join(VARIANTS)}")
    parser.add_argument("--out", type=Path, default=Path("distillation.jsonl"))
    given = parser.parse_args()
    known = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    found: dict[str, dict[int, float]] = {}
    for seed in range(given.seeds):
        for name in given.only or VARIANTS:
            key = [name, seed, given.lists, given.epochs, given.negatives, given.queries, *given.set]
            row = next((one for one in known if one["key"] == key), None) or measure(given, name, seed, key)
            print(f"{name:28} seed {seed}  MAP@25 {row['map@25']:.4f}  {row['seconds']:.0f} s", flush=True)
            found.setdefault(name, {})[seed] = row["map@25"]
    base = found.get("labels alone")
    for name, values in found.items():
        spread = statistics.stdev(values.values()) if len(values) > 1 else 0.0
        text = f"{name:28} {statistics.fmean(values.values()):.4f} +- {spread:.4f}"
        if base and len(values) > 1 and name != "labels alone":
            gains = [value - base[seed] for seed, value in values.items()]
            text += f"   gain {statistics.fmean(gains):+.4f}, error {statistics.stdev(gains) / len(gains) ** 0.5:.4f}"
        print(text)


def measure(given: argparse.Namespace, name: str, seed: int, key: list[Any]) -> dict[str, Any]:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        value = train(given, Path(folder), VARIANTS[name], seed)
    row = {"key": key, "map@25": value, "seconds": time.perf_counter() - started}
    with given.out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def write(given: argparse.Namespace, folder: Path) -> None:
    """Write the shards corpus, mined (the teacher's lists) and valid (the test queries)."""
    import pyarrow as pa

    from ratchet.data.tables import CORPUS, MINED, QUERIES, SCORES, TEACHER_SCORES, write_shards

    with (given.data / "misconception_mapping.csv").open(newline="") as file:
        corpus = [{"id": row["MisconceptionId"], "text": row["MisconceptionName"]} for row in csv.DictReader(file)]
    number = {row["text"].strip(): row["id"] for row in corpus}
    lists = [json.loads(line) for line in (given.data / given.lists).read_text().splitlines()]
    taught = {row["query"] for row in lists}
    pairs = [json.loads(line) for line in (given.data / "hn_mine_input.jsonl").read_text().splitlines()]
    tested = [row for row in pairs if row["query"] not in taught][: given.queries]

    def names(row: dict[str, Any], key: str) -> list[str]:
        return [number[text.strip()] for text in row[key]]

    positives, negatives = TEACHER_SCORES["positives"], TEACHER_SCORES["negatives"]
    mined = [
        {
            "id": str(n),
            "text": row["query"],
            "positives": names(row, "pos"),
            "negatives": names(row, "neg"),
            positives: row["pos_scores"],
            negatives: row["neg_scores"],
        }
        for n, row in enumerate(lists)
    ]
    schema = pa.schema([*MINED, (positives, SCORES), (negatives, SCORES)])
    write_shards(folder / "corpus", corpus, CORPUS, 100_000)
    write_shards(folder / "mined", mined, schema, 100_000)
    rows = [
        {"id": str(n), "text": row["query"], "positives": names(row, "pos"), "grades": [1]}
        for n, row in enumerate(tested)
    ]
    write_shards(folder / "valid", rows, QUERIES, 100_000)


def train(given: argparse.Namespace, folder: Path, variant: dict[str, Any], seed: int) -> float:
    """Return MAP@25 on the test after the last epoch."""
    import torch

    from benchmarks.quality.in_process import make_config, make_task
    from benchmarks.quality.in_process import train as train_task
    from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs
    from ratchet.jobs.retrieval.implementation.finetune_embedder import TrainTask
    from ratchet.models.model_files import MINILM, resolve

    torch.set_num_threads(given.threads)
    write(given, folder)
    loop: dict[str, Any] = {"epochs": given.epochs, "learning_rate": 1e-3, "temperature": 0.05, "dtype": "float32"}
    values = {**loop, "num_negatives": given.negatives, "seed": seed, **variant}
    inputs = Inputs(resolve(MINILM), folder / "mined", folder / "corpus", folder / "valid")
    task = make_task(TrainTask, make_config(Config, values, given.set), inputs, given.threads)
    train_task(task)
    return task.evaluate().metrics["map@25"]


if __name__ == "__main__":
    main()
