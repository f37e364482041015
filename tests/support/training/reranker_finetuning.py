"""Finetuning of a tiny BERT or decoder as a reranker: settings, inputs and contexts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from ratchet.data.tables import RANKED, TEACHER_SCORES, read_shards, write_shards, write_table
from ratchet.jobs.retrieval.finetune_reranker import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Resources, Result

FAST = Config(
    epochs=8,
    batch_size=16,
    num_negatives=3,
    lora_r=16,
    lora_alpha=32.0,
    learning_rate=1e-2,
    dtype="float32",
    seed=3,
    significance_level=1.0,  # few queries are held out
)

DECODER = Config(
    epochs=2,
    batch_size=16,
    num_negatives=3,
    depth=4,
    learning_rate=2e-3,
    dtype="float32",
    max_length=256,
    distillation="m3_kd_loss",
    allow_regression=True,
)


def make_inputs(concepts: Path, folder: Path) -> Inputs:
    """A teacher that knows the answers, and held-out lists in a random order."""
    random = np.random.default_rng(1)
    mined = read_shards(concepts / "mined")
    for ids, name in ((i, TEACHER_SCORES[i]) for i in ("positives", "negatives")):
        scores = [
            [float(5 * (ids == "positives")) + n / 10 for n in range(len(own))]
            for own in mined[ids].to_pylist()
        ]
        mined = mined.append_column(name, pa.array(scores, pa.list_(pa.float32())))
    write_table(folder / "mined" / "shard-00000.parquet", mined)
    names, rows = read_shards(concepts / "corpus")["id"].to_pylist(), []
    for query in read_shards(concepts / "valid").to_pylist():
        order = [names[i] for i in random.permutation(len(names))]
        ranks = [order.index(name) + 1 for name in query["positives"]]
        scores = [-float(n) for n in range(len(order))]
        rows.append(
            {
                "id": query["id"],
                "text": query["text"],
                "documents": order,
                "scores": scores,
                "ranks": ranks,
            }
        )
    write_shards(folder / "ranking", rows, RANKED, 50)
    return Inputs(
        concepts / "base",
        folder / "mined",
        concepts / "corpus",
        concepts / "valid",
        folder / "ranking",
    )


def context(folder: Path, workers: int = 1, micro_batch_size: int | None = None) -> Context:
    for name in ("out", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    resources = Resources(
        workers, cpus=2 / workers, gpus=0.0, retries=1, micro_batch_size=micro_batch_size
    )
    return Context("tune", "ef" * 32, 1, folder / "out", folder / "work", resources)


def losses(result: Result) -> list[float]:
    return result.curves["loss against step"]["y"]
