"""Implementation of `embed`: embeds shards of texts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from ratchet.data.rankings import summarize_tokens
from ratchet.data.tables import list_shards, open_mapped_shard, read_queries
from ratchet.data.vectors import read_dim, view_embeddings, write_vectors
from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.jobs.distributed.shard_map import ReportProgress, count_rows, map_model
from ratchet.jobs.inference import check_quantization
from ratchet.jobs.model_settings import list_instructions
from ratchet.jobs.retrieval.embed import Config, Inputs, find_encoding_config
from ratchet.models.embedder import encoder
from ratchet.orchestrator.job_interface import Context, Result


class Worker:
    """Embeds shards of texts. Each worker has a copy of the model."""

    def __init__(self, inputs: Inputs, config: Config, batch_tokens: int, device: str) -> None:
        self.encoder = encoder.load(
            inputs.model,
            inputs.adapter,
            dtype=config.dtype,
            device=device,
            quantization=config.quantization,
            encoding_config=find_encoding_config(config, inputs),
        )
        self.config = config
        self.batch_tokens = batch_tokens

    def __call__(self, source: Path, target: Path, report: ReportProgress) -> dict[str, int]:
        texts = read_queries(source, ("id", "text"))
        lengths: Counter[int] = Counter()

        def count(length_B: np.ndarray) -> None:
            lengths.update(length_B.tolist())
            report(lengths.total(), _sum(lengths))

        rows = texts["text"].to_pylist()
        own = list_instructions(self.config, texts)
        vectors_ND = self.encoder.encode(rows, self.config.role, own, batch_tokens=self.batch_tokens, progress=count)
        write_vectors(target, texts["id"], vectors_ND.astype(self.config.storage_dtype))
        return _count(lengths)


def _count(lengths: Counter[int]) -> dict[str, int]:
    """Return the counts of a shard: texts, tokens, and the number of texts of each length in tokens. Their sums over
    all shards are the exact distribution of lengths, whose size depends on the longest text only."""
    texts = {}
    for length, number in sorted(lengths.items()):
        texts[f"length/{length}"] = number
    return {"rows": lengths.total(), "tokens": _sum(lengths), **texts}


def _sum(lengths: Counter[int]) -> int:
    return sum(length * number for length, number in lengths.items())


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    shards = list_shards(inputs.texts)
    rows = count_rows(shards, ["id", "text"])
    config = resolve_dtype(context, config)
    # At plan time the model may not have existed.
    check_quantization("embed", config.quantization, inputs.model)
    counts = map_model(context, shards, Worker, config, inputs, rows, "arrow")
    dim = read_dim(context.out)
    if config.npy:
        _write_npy(context.out, rows, dim)
    lengths = {}
    for name, number in counts.items():
        if "/" in name:
            lengths[int(name.removeprefix("length/"))] = number
    table = [summarize_tokens(config.role, list(lengths), list(lengths.values()))]
    metrics = {"rows": rows, "dim": dim, "tokens": counts.get("tokens", 0), "dtype": config.dtype}
    return Result(metrics, {"tokens per text": table})


def _write_npy(folder: Path, rows: int, dim: int) -> None:
    """Write the vectors of all shards as one array (one shard is in memory at a time), and the ids."""
    array = np.lib.format.open_memmap(folder / "embeddings.npy", "w+", np.float32, (rows, dim))
    done = 0
    with (folder / "ids.txt").open("w", encoding="utf-8") as file:
        for path in list_shards(folder, "arrow"):
            table = open_mapped_shard(path)
            array[done : done + len(table)] = view_embeddings(table)
            file.writelines(f"{name}\n" for name in table["id"].to_pylist())
            done += len(table)
    array.flush()
