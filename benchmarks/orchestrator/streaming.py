"""Embedding on several workers: tasks that take shards from a queue, compared with two pipelines of Ray Data.

    python -m benchmarks.orchestrator.streaming [--workers 1,2] [--texts 1000] [--rounds 3] [--share 0.5]

`shards` is the method of the jobs (`jobs/distributed/shard_map.py`): one Ray task per worker, which reads the file of a
shard, embeds the texts and writes a file. `actors` gives the same files to a pool of actors of Ray Data. In `blocks`
the rows go through Ray's object store: tasks read and tokenize, actors embed, tasks write. All write the same vectors,
as Parquet or Arrow files. The first round starts processes, which `shards` reuses in the later rounds; seconds of the
first and of later rounds are shown. Each worker is a Ray node on this machine, with one CPU for the worker and one for
Ray Data's tasks. With `--share` a node may use this share of a core (needs root and cgroups 1).
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.data import ActorPoolStrategy, DataContext

from benchmarks.misconceptions import format_query, generate_questions
from benchmarks.orchestrator.nodes import limit
from ratchet.data.tables import write_table
from ratchet.data.vectors import read_dim
from ratchet.jobs.distributed.pieces import Piece, count_rows
from ratchet.jobs.distributed.shard_map import ModelMap, map_model
from ratchet.jobs.retrieval.embed import Config, Inputs, Worker
from ratchet.models.batching import batch_by_tokens, pad
from ratchet.models.embedder import encoder
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.embedder.tokenization import TextTokenizer
from ratchet.models.model_files import MINILM, resolve
from ratchet.models.pass_size import size_passes
from ratchet.orchestrator.job_interface import Context, Resources
from tests.support.clusters.nodes import Nodes, environment_of

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 128
"""Rows per block, and per shard."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, help="of a core, which each worker has")
    given = parser.parse_args()
    print(f"{'workers':>8}{'way':>9}{'first':>9}{'later':>9}   seconds for {given.texts} texts")
    for workers in map(int, given.workers.split(",")):
        with tempfile.TemporaryDirectory() as name:
            measure(Path(name), workers, given.texts, given.rounds, given.share)


def measure(folder: Path, workers: int, texts: int, rounds: int, share: float | None) -> None:
    environment = environment_of(
        folder, PYTHONPATH=str(ROOT), OMP_WAIT_POLICY="PASSIVE", RAY_DATA_DISABLE_PROGRESS_BARS="1"
    )
    os.environ |= {name: environment[name] for name in ("RAY_AUTH_MODE", "PYTHONPATH")}
    cluster = Nodes(folder, environment, "--num-cpus=0", "--include-dashboard=false")
    try:
        for number in range(workers):
            node = cluster.add(cpus=2)
            if share:
                limit(node, number, share)
        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        DataContext.get_current().enable_progress_bars = False
        DataContext.get_current().print_on_execution_start = False
        shards = write_shards(folder / "texts", texts)
        found: dict[str, list[float]] = {name: [] for name in WAYS}
        for number in range(rounds):
            for name, way in WAYS.items():
                out = folder / f"{name}-{number}"
                out.mkdir()
                started = time.perf_counter()
                way(shards, out, workers)
                found[name].append(time.perf_counter() - started)
                shutil.rmtree(out)
        for name, seconds in found.items():
            print(
                f"{workers:8}{name:>9}{seconds[0]:9.1f}{median(seconds[1:] or seconds):9.1f}",
                flush=True,
            )
    finally:
        ray.shutdown()
        cluster.end()


def write_shards(folder: Path, texts: int) -> list[Path]:
    rows = [
        format_query(question, n)
        for question in generate_questions(texts, 1)
        for n, rule in enumerate(question.rules)
        if rule
    ]
    paths = []
    for start in range(0, texts, BLOCK):
        part = rows[start : min(start + BLOCK, texts)]
        paths.append(folder / f"shard-{start // BLOCK:05d}.parquet")
        write_table(
            paths[-1], pa.table({"id": [f"{start + n}" for n in range(len(part))], "text": part})
        )
    return paths


def by_shards(shards: list[Path], out: Path, workers: int) -> None:
    work = out / "work"
    work.mkdir()
    context = Context(
        "embed", "0" * 64, 1, out / "vectors", work, Resources(workers, cpus=1.0, gpus=0.0)
    )
    rows = count_rows(shards, ["id", "text"])
    given = arguments()
    own = ModelMap(shards, Worker, given["config"], given["inputs"], rows, suffix="arrow")
    map_model(context, own, lambda *_: None)
    assert read_dim(context.out)


def arguments() -> dict[str, Any]:
    inputs = Inputs(model=resolve(MINILM), texts=Path())
    return {
        "inputs": inputs,
        "config": Config(dtype="float32"),
        "batch_tokens": 16_384,
        "device": "cpu",
    }


class ActorOnShards:
    def __init__(self) -> None:
        self.worker = Worker(**arguments())

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        piece = Piece.whole(Path(batch["source"][0]), Path(batch["target"][0]))
        return {"rows": [self.worker(piece, piece.target, lambda rows, tokens=0: None)["rows"]]}


def by_actors(shards: list[Path], out: Path, workers: int) -> None:
    items = [{"source": str(path), "target": str(out / f"{path.stem}.arrow")} for path in shards]
    data = ray.data.from_items(items, override_num_blocks=len(items))
    pool = ActorPoolStrategy(size=workers)
    data.map_batches(ActorOnShards, batch_size=1, compute=pool, num_cpus=1).materialize()


class Tokenizer:
    """Reads a file and tokenizes its texts; the tokenizer is kept in the process."""

    kept: TextTokenizer | None = None

    @classmethod
    def tokenize(cls, batch: dict[str, Any]) -> dict[str, Any]:
        if cls.kept is None:
            config = read_encoding_config(resolve(MINILM))
            cls.kept = TextTokenizer(encoder.load_tokenizer(resolve(MINILM), config), config)
        texts = pq.read_table(batch["source"][0]).to_pydict()
        ids = cls.kept(texts["text"], "passage")
        return {
            "id": np.array(texts["id"]),
            "ids": np.array([np.array(row, np.int32) for row in ids], dtype=object),
        }


class ActorOnTokens:
    def __init__(self) -> None:
        self.encoder = encoder.load(resolve(MINILM), dtype="float32", device="cpu")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import torch

        rows = [row.tolist() for row in batch["ids"]]
        own = self.encoder
        multiple, tokens = size_passes("cpu", 16_384)
        vectors = np.empty((len(rows), own.dim), np.float32)
        with torch.no_grad():
            for places in batch_by_tokens(np.array([len(row) for row in rows]), tokens, multiple):
                chosen = [rows[place] for place in places]
                ids, mask = pad(
                    chosen, own.tokenizer.pad_token_id, own.encoding_config.padding_side, multiple
                )
                vectors[places] = own.embed(ids, mask).numpy()
        return {"id": batch["id"], "vector": vectors}


def by_blocks(shards: list[Path], out: Path, workers: int) -> None:
    # Not by read_parquet, which makes one block of small files, so that one actor would get all rows.
    items = [{"source": str(path)} for path in shards]
    data = ray.data.from_items(items, override_num_blocks=len(items))
    # With other resources than the actors': Ray Data would put both into one process.
    tokens = data.map_batches(Tokenizer.tokenize, batch_size=1, num_cpus=0.5)
    pool = ActorPoolStrategy(size=workers)
    vectors = tokens.map_batches(ActorOnTokens, batch_size=BLOCK, compute=pool, num_cpus=1)
    vectors.write_parquet(str(out / "vectors"))


WAYS: dict[str, Callable[[list[Path], Path, int], None]] = {
    "shards": by_shards,
    "actors": by_actors,
    "blocks": by_blocks,
}

if __name__ == "__main__":
    main()
