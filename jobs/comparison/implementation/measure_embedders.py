"""Implementation of `measure_embedders`. Latencies hold for this machine at this time, and differ from run to run."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch

from ratchet.data.tables import read_shards
from ratchet.jobs.comparison.measure_embedders import Config, Inputs
from ratchet.models.embedder import encoder
from ratchet.orchestrator.job_interface import Context, Progress, Result

WARM_UP = 3
"""Number of queries that are embedded before the measurement."""


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    torch.set_num_threads(max(1, int(context.resources.cpus or 1)))
    texts = read_shards(inputs.queries)["text"].to_pylist()[: config.samples]
    sizes = [sum(file.stat().st_size for file in folder.rglob("*.safetensors")) for folder in inputs.models]
    found: dict[int, dict[str, float | int]] = {}
    for done in range(config.rounds):
        for number, folder in list(enumerate(inputs.models))[:: -1 if done % 2 else 1]:
            if sizes[number] <= config.max_gigabytes * 1e9:
                measured = measure(folder, config.dtype, texts)
                found[number] = min(found.get(number, measured), measured, key=lambda one: one["milliseconds"])
        context.progress(Progress(done + 1, config.rounds, "rounds"))
    metrics: dict[str, float | int | str] = {}
    for number, size in enumerate(sizes):
        own = {"megabytes": round(size / 1e6, 1), **found.get(number, {})}
        metrics |= {f"{number}/{name}": value for name, value in own.items()}
    (context.out / "latency.json").write_text(json.dumps(metrics, indent=1))
    return Result(metrics)


def measure(folder: Path, dtype: str, texts: list[str]) -> dict[str, float | int]:
    """Return the median milliseconds per query of a model, its dimensions, and the number of queries."""
    loaded = encoder.load(folder, dtype=dtype, device="cpu")
    seconds = []
    for text in [*texts[:WARM_UP], *texts]:
        started = time.perf_counter()
        loaded.encode([text], "query")
        seconds.append(time.perf_counter() - started)
    median = float(np.median(seconds[min(WARM_UP, len(texts)) :]))
    return {"milliseconds": round(1000 * median, 3), "dimensions": loaded.dim, "queries": len(texts)}
