"""The share of a finetune's time that its evaluations take, on a corpus of SciFact's shape.

    python -m benchmarks.training.evaluation [--documents 5183] [--tokens 250] [--queries 730] [--epochs 4] [--steps 2]

An embedder is evaluated at the start and after each epoch, against a pool of documents (`eval_pool`). The benchmark
times an evaluation and some training steps of MiniLM with LoRA at the settings of the retrieval loop, and computes the
time of all epochs from them. Texts consist of random words of the generated questions.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.inference.embedding import load_texts
from benchmarks.training.finetune import steps
from ratchet.data.evaluation_pool import choose_pool
from ratchet.data.tables import CORPUS, MINED, QUERIES, read_shards, write_shards
from ratchet.jobs.retrieval.embedder_training import EmbedderTask
from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models import engine
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.job_interface import Resources

WORDS_PER_TOKEN = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=5183)
    parser.add_argument(
        "--tokens", type=int, default=250, help="of a document; a query has a tenth"
    )
    parser.add_argument("--queries", type=int, default=730)
    parser.add_argument("--held-out", type=int, default=73, help="queries of the evaluation")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2, help="training steps that are timed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    engine.silence_libraries()
    config = Config(batch_size=64, num_negatives=4, temperature=0.05, dtype="float32")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder, given)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        inputs = Inputs(resolve(MINILM), folder / "mined", folder / "corpus", folder / "valid")
        corpus, valid = read_shards(folder / "corpus", ["id"]), read_shards(folder / "valid")
        print(
            f"{'documents ranked':24} {'evaluation':>11} {'training step':>14} {'share of all epochs':>20}"
        )
        for pool in (config.eval_pool, None):
            rows = choose_pool(valid, corpus, None, pool, config.seed)
            place, resources = (
                WorkerInfo(0, 1, "cpu"),
                Resources(1, cpus=float(given.threads), gpus=0.0),
            )
            task = EmbedderTask(
                place, dataclasses.replace(config, eval_pool=pool), inputs, resources, rows
            )
            started = time.perf_counter()
            task.evaluate()
            evaluation = time.perf_counter() - started
            started = time.perf_counter()
            steps(task, 0)
            step = (time.perf_counter() - started) / task.steps[0]
            training, evaluating = (
                given.epochs * -(-given.queries // 64) * step,
                (given.epochs + 1) * evaluation,
            )
            share = evaluating / (training + evaluating)
            print(
                f"{len(task.pool):24,} {evaluation:9.1f} s {step:12.1f} s {share:20.1%}", flush=True
            )


def write_data(folder: Path, given: argparse.Namespace) -> None:
    """Write the corpus, as many training queries as are timed, and the held-out ones."""
    chance = random.Random(0)
    words = [word for word in " ".join(load_texts(None)).split() if word.isalpha()]

    def make_text(tokens: int) -> str:
        return " ".join(chance.choices(words, k=int(tokens * WORDS_PER_TOKEN)))

    def make_query(name: str) -> dict[str, Any]:
        right, *wrong = map(str, chance.sample(range(given.documents), 5))
        return {
            "id": name,
            "text": make_text(given.tokens // 10),
            "positives": [right],
            "negatives": wrong,
        }

    texts = [make_text(given.tokens) for _ in range(given.documents)]
    write_shards(
        folder / "corpus",
        [{"id": str(n), "text": text} for n, text in enumerate(texts)],
        CORPUS,
        100_000,
    )
    mined, valid = (
        [make_query(f"{name}-{number}") for number in range(count)]
        for name, count in (("mined", given.steps * 64), ("valid", given.held_out))
    )
    scores: dict[str, Any] = {"positive_scores": [], "negative_scores": []}
    write_shards(folder / "mined", [row | scores for row in mined], MINED, 100_000)
    write_shards(folder / "valid", [row | {"grades": [1]} for row in valid], QUERIES, 100_000)


if __name__ == "__main__":
    main()
