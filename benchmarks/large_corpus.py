"""A corpus that does not fit into memory: seconds and peak memory of each stage, every one in a process of its own.

    python -m benchmarks.large_corpus --documents 10000000 [--stages prepare,datasets,mine] [--folder DIR]

`make` writes a BEIR folder of random words (about 500 bytes per passage) and random unit vectors in shards, once per
folder. `prepare` is the job; `datasets` loads and sorts the same file with the Hugging Face library. `mine` searches
all vectors for one shard of queries, as a worker does, and writes the training file, as the driver does. The peak
memory is the kernel's `ru_maxrss` of the process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from ratchet.data.tables import Texts, list_shards, read_shards
from ratchet.data.vectors import write_vectors
from ratchet.jobs.retrieval.mine import Config as MineConfig
from ratchet.jobs.retrieval.mine import Inputs as MineInputs
from ratchet.jobs.retrieval.prepare import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Resources

BYTES, SHARD_ROWS = 500, 65_536


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=20_000, help="training queries; a shard has 4,096")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument("--folder", type=Path, help="where the data stays (default: a temporary folder)")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.stage:
        started = time.perf_counter()
        STAGES[given.stage](given)
        seconds, peak = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        million = seconds / given.documents * 1e6
        print(f"{given.stage:10} {seconds:9.1f} s {million:9.1f} s per million {peak:8.2f} GB", flush=True)
        return
    with tempfile.TemporaryDirectory() as temporary:
        given.folder = given.folder or Path(temporary)
        own = [f"--{name}={getattr(given, name)}" for name in ("documents", "queries", "dim", "folder")]
        for stage in given.stages.split(","):
            subprocess.run([sys.executable, "-m", "benchmarks.large_corpus", *own, f"--stage={stage}"], check=True)


def make_context(given: argparse.Namespace, name: str) -> Context:
    out, work = given.folder / name, given.folder / f"{name}-work"
    for path in (out, work):
        path.mkdir(exist_ok=True)
    return Context(name, "0" * 64, 1, out, work, Resources(1, cpus=float(os.cpu_count() or 1), gpus=0.0))


def make(given: argparse.Namespace) -> None:
    """Write a BEIR folder, and vectors in shards of the same rows as those of `prepare`."""
    folder, chance = given.folder / "beir", random.Random(0)
    if (folder / "qrels" / "train.tsv").exists():
        return
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(50_000)]
    with (folder / "corpus.jsonl").open("w") as file:
        for number in range(given.documents):
            text = " ".join(chance.choices(words, k=BYTES * 10 // 65))
            file.write(json.dumps({"_id": f"d{number}", "title": "", "text": text}) + "\n")
    with (folder / "queries.jsonl").open("w") as file, (folder / "qrels" / "train.tsv").open("w") as labels:
        labels.write("query-id\tcorpus-id\tscore\n")
        for number in range(given.queries):
            file.write(json.dumps({"_id": f"q{number}", "text": " ".join(chance.choices(words, k=10))}) + "\n")
            labels.write(f"q{number}\td{chance.randrange(given.documents)}\t1\n")
    write_random(given.folder / "corpus_embeddings", "d", given.documents, given.dim)


def write_random(folder: Path, prefix: str, rows: int, dim: int) -> None:
    rng = np.random.default_rng(len(prefix) + rows)
    for number, start in enumerate(range(0, rows, SHARD_ROWS)):
        block_ND = rng.standard_normal((min(SHARD_ROWS, rows - start), dim), dtype=np.float32)
        block_ND /= np.linalg.norm(block_ND, axis=1, keepdims=True)
        ids = pa.chunked_array([[f"{prefix}{start + row}" for row in range(len(block_ND))]])
        write_vectors(folder / f"shard-{number:05d}.parquet", ids, block_ND)


def prepare(given: argparse.Namespace) -> None:
    from ratchet.jobs.retrieval.implementation.prepare import run

    config = Config(shard_rows=SHARD_ROWS, test_fraction=0.0, validation_fraction=0.0)
    print(run(make_context(given, "prepare"), config, Inputs((given.folder / "beir",))).metrics)


def load_datasets(given: argparse.Namespace) -> None:
    """Load and sort the same file with the library `datasets`."""
    import datasets

    cache = given.folder / "datasets"
    corpus = str(given.folder / "beir" / "corpus.jsonl")
    loaded = datasets.load_dataset("json", data_files=corpus, cache_dir=str(cache), split="train")
    ordered = loaded.sort("_id").flatten_indices()
    ordered.save_to_disk(str(given.folder / "sorted"))


def mine(given: argparse.Namespace) -> None:
    from ratchet.jobs.retrieval.implementation.mine import Worker, write_jsonl

    prepared = given.folder / "prepare"
    write_random(given.folder / "query_embeddings", "q", given.queries, given.dim)
    folders = (given.folder / name for name in ("query_embeddings", "corpus_embeddings"))
    inputs = MineInputs(prepared / "train", prepared / "corpus", *folders)
    context = make_context(given, "mine")
    (source,) = list_shards(inputs.queries)
    worker = Worker(MineConfig(), inputs, "cpu")
    print(worker(source, context.out / source.name, lambda *_: None))
    write_jsonl(context.out, Texts(read_shards(inputs.corpus)))


STAGES: dict[str, Callable[[argparse.Namespace], None]] = {
    "make": make,
    "prepare": prepare,
    "datasets": load_datasets,
    "mine": mine,
}


if __name__ == "__main__":
    main()
