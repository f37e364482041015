"""Seconds and peak memory of each stage with a corpus that does not fit into memory. Each stage is a separate process.

    python -m benchmarks.inference.large_corpus --documents 10000000 [--stages make,prepare,...] [--folder DIR]

`make` writes a BEIR folder of random words (about 500 bytes per passage), once per folder, and `vectors` writes random
unit vectors in shards. `prepare` runs the job, and `datasets` loads and sorts the same corpus file with the Hugging
Face library. `make-pairs` writes `--documents` pairs, each with its own passage, and `prepare-pairs` runs the job on
them. `mine` searches all vectors for the queries, shard by shard as a worker does, and writes the training file as the
driver does.
`evaluate` ranks the whole corpus for each query. `train` starts training on as many mined queries as there are
documents: it reads them, draws the order of an epoch, and makes the first batch with its texts. `train-sft` does the
same with as many tokenized samples of 60 tokens. Two peaks of the process's memory are printed: the kernel's
`ru_maxrss`, and the peak of the memory that is not mapped from files (sampled); the kernel can take back the pages of
mapped files when it needs them. `--limit` runs each stage in a memory control group of that many GB, page cache
included (needs root and cgroups 1).
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
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.inference.mining import unit
from ratchet.data.tables import MINED, list_shards, read_shards, take_texts, write_table
from ratchet.data.triplets import Triplets, split_epoch
from ratchet.data.vectors import write_vectors
from ratchet.jobs.retrieval.evaluate_retrieval import Config as EvaluationConfig
from ratchet.jobs.retrieval.evaluate_retrieval import Inputs as EvaluationInputs
from ratchet.jobs.retrieval.mine import Config as MineConfig
from ratchet.jobs.retrieval.mine import Inputs as MineInputs
from ratchet.jobs.retrieval.prepare import Config, Inputs
from ratchet.orchestrator.job_interface import Context, Resources

BYTES, SHARD_ROWS = 500, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument(
        "--queries", type=int, default=20_000, help=f"training queries; a shard has {SHARD_ROWS:,}"
    )
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--storage-dtype", default="float16", help="of the vectors, as in `embed`")
    parser.add_argument("--negatives", type=int, default=4, help="of each query of `train`")
    parser.add_argument("--stages", default=",".join(STAGES))
    parser.add_argument(
        "--folder", type=Path, help="where the data stays (default: a temporary folder)"
    )
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, help="GB of memory, as of a machine with so much")
    given = parser.parse_args()
    if given.stage:
        if given.limit:
            enter_group(given.limit)
        memory = Sampler()
        started = time.perf_counter()
        STAGES[given.stage](given)
        seconds, peak = (
            time.perf_counter() - started,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        )
        million = seconds / given.documents * 1e6
        sizes = f"{peak:8.2f} GB, {memory.peak:.2f} GB without mapped files"
        print(f"{given.stage:10} {seconds:9.1f} s {million:9.1f} s per million {sizes}", flush=True)
        return
    with tempfile.TemporaryDirectory() as temporary:
        given.folder = given.folder or Path(temporary)
        names: tuple[str, ...] = (
            "documents",
            "queries",
            "dim",
            "storage_dtype",
            "negatives",
            "folder",
        )
        names += ("limit",) if given.limit else ()
        own = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in names]
        for stage in given.stages.split(","):
            subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.inference.large_corpus",
                    *own,
                    f"--stage={stage}",
                ],
                check=True,
            )


def make_context(given: argparse.Namespace, name: str) -> Context:
    out, work = given.folder / name, given.folder / f"{name}-work"
    for path in (out, work):
        path.mkdir(exist_ok=True)
    return Context(
        name, "0" * 64, 1, out, work, Resources(1, cpus=float(os.cpu_count() or 1), gpus=0.0)
    )


def make(given: argparse.Namespace) -> None:
    """Write a BEIR folder. Passages are made of pieces of five words: many words are quicker to draw that way."""
    folder, chance, rng = given.folder / "beir", random.Random(0), np.random.default_rng(0)
    if (folder / "qrels" / "train.tsv").exists():
        return
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    words, passages = write_passages(given.documents, chance, rng)
    with (folder / "corpus.jsonl").open("w") as file:
        for number, text in enumerate(passages):
            file.write(f'{{"_id": "d{number}", "title": "", "text": "{text}"}}\n')
    with (
        (folder / "queries.jsonl").open("w") as file,
        (folder / "qrels" / "train.tsv").open("w") as labels,
    ):
        labels.write("query-id\tcorpus-id\tscore\n")
        for number in range(given.queries):
            file.write(
                json.dumps({"_id": f"q{number}", "text": " ".join(chance.choices(words, k=10))})
                + "\n"
            )
            labels.write(f"q{number}\td{chance.randrange(given.documents)}\t1\n")


def write_passages(
    number: int, chance: random.Random, rng: np.random.Generator
) -> tuple[list[str], Iterator[str]]:
    """Return words, and passages of them."""
    words = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9)))
        for _ in range(50_000)
    ]
    pieces = np.array([" ".join(chance.choices(words, k=5)) for _ in range(50_000)], object)

    def passages() -> Iterator[str]:
        for start in range(0, number, SHARD_ROWS):
            rows = min(SHARD_ROWS, number - start)
            yield from map(" ".join, pieces[rng.integers(0, len(pieces), (rows, BYTES // 32))])

    return words, passages()


def make_pairs(given: argparse.Namespace) -> None:
    if (path := given.folder / "pairs.jsonl").exists():
        return
    _, passages = write_passages(given.documents, random.Random(0), np.random.default_rng(0))
    with path.with_suffix(".part").open("w") as file:
        for number, text in enumerate(passages):
            file.write(
                f'{{"query": "what is said of {number} and {text[:40]}", "positive": "{text}"}}\n'
            )
    path.with_suffix(".part").rename(path)


def prepare_pairs(given: argparse.Namespace) -> None:
    from ratchet.jobs.retrieval.prepare import check as predict
    from ratchet.jobs.retrieval.prepare import run

    inputs, print_since = Inputs((given.folder / "pairs.jsonl",)), Clock()
    print_since(f"planned: {predict(Config(), inputs, {}).metrics}")
    print_since(
        f"{run(make_context(given, 'prepare-pairs'), Config(shard_rows=SHARD_ROWS), inputs).metrics}"
    )


def write_random(given: argparse.Namespace, texts: Path, folder: Path) -> None:
    """Write random vectors for the shards of texts."""
    for number, path in enumerate(list_shards(texts)):
        if not (target := folder / f"{path.stem}.arrow").exists():
            ids = read_ids(path)
            rng = np.random.default_rng([number, len(ids)])
            block_ND = unit(rng, len(ids), given.dim)
            write_vectors(target, ids, block_ND.astype(given.storage_dtype))


def read_ids(path: Path) -> pa.ChunkedArray:
    return pq.read_table(path, columns=["id"])["id"]


class Sampler:
    """Samples the memory of the process that is not a mapped file: `peak`, in GB."""

    def __init__(self) -> None:
        self.peak = 0.0
        threading.Thread(target=self._sample, daemon=True).start()

    def _sample(self) -> None:
        while True:
            line = next(
                one
                for one in Path("/proc/self/status").read_text().splitlines()
                if one.startswith("RssAnon")
            )
            self.peak = max(self.peak, int(line.split()[1]) / 1e6)
            time.sleep(0.1)


def enter_group(limit: float) -> None:
    group = Path("/sys/fs/cgroup/memory/large_corpus")
    group.mkdir(exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(str(int(limit * 1e9)))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def write_embeddings(given: argparse.Namespace) -> None:
    prepared = given.folder / "prepare"
    for texts, name in (("corpus", "corpus_embeddings"), ("train", "query_embeddings")):
        write_random(given, prepared / texts, given.folder / name)


def prepare(given: argparse.Namespace) -> None:
    from ratchet.jobs.retrieval.prepare import run

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
    from ratchet.data.scored_lists import write_flag_embedding
    from ratchet.jobs.distributed.pieces import Piece
    from ratchet.jobs.retrieval.mining import Worker

    inputs, context = MineInputs(*list_inputs(given)), make_context(given, given.stage)
    worker = Worker(MineConfig(), inputs, "cpu")
    for source in list_shards(inputs.queries):
        piece = Piece.whole(source, context.out / source.name)
        print(worker(piece, piece.target, lambda *_: None), flush=True)
    write_flag_embedding(context.out, inputs.corpus)


def list_inputs(given: argparse.Namespace) -> tuple[Path, Path, Path, Path]:
    """Return the folders of queries, corpus, and the vectors of both."""
    prepared = given.folder / "prepare"
    return (
        prepared / "train",
        prepared / "corpus",
        given.folder / "query_embeddings",
        given.folder / "corpus_embeddings",
    )


def evaluate(given: argparse.Namespace) -> None:
    from ratchet.jobs.distributed.pieces import Piece
    from ratchet.jobs.retrieval.ranking import Worker

    inputs, context = EvaluationInputs(*list_inputs(given)), make_context(given, "evaluate")
    worker, print_since = Worker(EvaluationConfig(), inputs, "cpu"), Clock()
    for source in list_shards(inputs.queries):
        piece = Piece.whole(source, context.out / source.name)
        print_since(f"{worker(piece, piece.target, lambda *_: None)}")


def train(given: argparse.Namespace) -> None:
    folder = given.folder / "mined"
    for number, start in enumerate(range(0, given.documents, SHARD_ROWS)):
        if not (path := folder / f"shard-{number:05d}.parquet").exists():
            write_table(path, make_mined(given, start, min(SHARD_ROWS, given.documents - start)))
    print_since = Clock()
    corpus = read_shards(given.folder / "prepare" / "corpus", ["id", "text"])
    triplets = Triplets(
        read_shards(folder), corpus, seed=42, batch_size=128, num_negatives=given.negatives
    )
    print_since(f"read {len(triplets):,} queries and their negatives")
    for epoch in range(2):
        batch = triplets.batch(epoch, 0)
        texts = take_texts(corpus["text"], batch.passage_P)
        print_since(f"epoch {epoch}: order, and first batch with {len(texts)} passages")
    triplets.batch(1, 1)
    print_since("second batch")


def make_mined(given: argparse.Namespace, start: int, rows: int) -> pa.Table:
    rng, n = np.random.default_rng([1, start]), given.negatives

    def draw(each: int) -> pa.Array:
        names = pc.binary_join_element_wise(
            "d", pa.array(rng.integers(0, given.documents, rows * each).astype(str)), ""
        )
        return pa.ListArray.from_arrays(np.arange(0, rows * each + 1, each, dtype=np.int32), names)

    def score(each: int) -> pa.Array:
        values = pa.array(rng.random(rows * each, dtype=np.float32))
        return pa.ListArray.from_arrays(np.arange(0, rows * each + 1, each, dtype=np.int32), values)

    names = pc.binary_join_element_wise(
        "t", pa.array(np.arange(start, start + rows).astype(str)), ""
    )
    texts = pc.binary_join_element_wise(
        names, "what a query of some fifty bytes looks like here", " "
    )
    return pa.Table.from_arrays([names, texts, draw(1), draw(n), score(1), score(n)], schema=MINED)


def train_sft(given: argparse.Namespace) -> None:
    from ratchet.jobs.answers.token_table import TOKENS, TokenTable

    def make_tables() -> Iterator[pa.Table]:
        for start in range(0, given.documents, SHARD_ROWS):
            rows = min(SHARD_ROWS, given.documents - start)
            ends, rng = (
                np.arange(0, rows * 60 + 1, 60, dtype=np.int32),
                np.random.default_rng(start),
            )
            ids = pa.ListArray.from_arrays(
                ends, rng.integers(0, 150_000, rows * 60).astype(np.int32)
            )
            trained = pa.ListArray.from_arrays(ends, pa.array(np.tile(np.arange(60) >= 40, rows)))
            names = pa.array(np.arange(start, start + rows).astype(str))
            yield pa.Table.from_arrays(
                [names, pa.array(np.full(rows, 20, np.int32)), ids, trained], schema=TOKENS
            )

    print_since = Clock()
    samples = TokenTable(pa.concat_tables(make_tables()))
    print_since(f"made and mapped {len(samples.size_N):,} samples")
    for epoch in range(2):
        batch = split_epoch(len(samples.size_N), -(-given.documents // 128), 42, epoch)[0]
        tokens = sum(len(samples[row].ids) for row in batch)
        print_since(f"epoch {epoch}: order, and first batch with {tokens} tokens")


class Clock:
    """Prints the seconds since the last call."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def __call__(self, what: str) -> None:
        now = time.perf_counter()
        print(f"  {now - self.last:8.2f} s {what}", flush=True)
        self.last = now


STAGES: dict[str, Callable[[argparse.Namespace], None]] = {
    "make": make,
    "prepare": prepare,
    "make-pairs": make_pairs,
    "prepare-pairs": prepare_pairs,
    "datasets": load_datasets,
    "vectors": write_embeddings,
    "mine": mine,
    "evaluate": evaluate,
    "train": train,
    "train-sft": train_sft,
}


if __name__ == "__main__":
    main()
