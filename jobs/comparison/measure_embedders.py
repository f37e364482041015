"""measure_embedders: measure milliseconds per query on CPUs, megabytes and dimensions of embedders."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from ratchet.jobs.model_checks import check_embedder_model
from ratchet.models.embedder.encoding_config import read_encoding_config
from ratchet.models.model_files import check_folder
from ratchet.orchestrator.job_interface import Context, Job, Parents, Progress, Result, Unit

WARM_UP = 3
"""Number of queries that are embedded before the measurement."""


@dataclass(frozen=True)
class Config:
    samples: Annotated[int, Ge(1), Unit("queries")] = 50
    """Number of queries, the first ones of the data, which are embedded one at a time."""
    rounds: Annotated[int, Ge(1)] = 2
    """Number of rounds over all models, every second one in reverse order. The fastest round of a model counts."""
    max_gigabytes: Annotated[float, Gt(0), Unit("GB")] = 4.0
    """Models whose weights take more than this are not run, since they are meant for GPUs."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of weights and arithmetic."""


@dataclass(frozen=True)
class Inputs:
    models: tuple[Path, ...]
    """Hugging Face model folders. One is in memory at a time."""
    queries: Path
    """Shards of queries."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    for folder in inputs.models or ():
        check_folder(folder)
        check_embedder_model(folder, read_encoding_config(folder))


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import torch

    from ratchet.data.tables import read_shards

    torch.set_num_threads(max(1, int(context.resources.cpus or 1)))
    texts = read_shards(inputs.queries)["text"].to_pylist()[: config.samples]
    sizes = [
        sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
        for folder in inputs.models
    ]
    found: dict[int, dict[str, float | int]] = {}
    for done in range(config.rounds):
        for number, folder in list(enumerate(inputs.models))[:: -1 if done % 2 else 1]:
            if sizes[number] <= config.max_gigabytes * 1e9:
                measured = measure(folder, config.dtype, texts)
                found[number] = min(
                    found.get(number, measured), measured, key=lambda one: one["milliseconds"]
                )
        context.progress(Progress(done + 1, config.rounds, "rounds"))
    metrics: dict[str, float | int | str] = {}
    for number, size in enumerate(sizes):
        own = {"megabytes": round(size / 1e6, 1), **found.get(number, {})}
        metrics |= {f"{number}/{name}": value for name, value in own.items()}
    (context.out / "latency.json").write_text(json.dumps(metrics, indent=1))
    return Result(metrics)


def measure(folder: Path, dtype: str, texts: list[str]) -> dict[str, float | int]:
    """Return the median milliseconds per query of a model, its dimensions, and the number of queries."""
    import numpy as np

    from ratchet.models.embedder import encoder

    loaded = encoder.load(folder, dtype=dtype, device="cpu")
    seconds = []
    for text in [*texts[:WARM_UP], *texts]:
        started = time.perf_counter()
        loaded.encode([text], "query")
        seconds.append(time.perf_counter() - started)
    median = float(np.median(seconds[min(WARM_UP, len(texts)) :]))
    return {
        "milliseconds": round(1000 * median, 3),
        "dimensions": loaded.dim,
        "queries": len(texts),
    }


JOB = Job(
    "measure_embedders",
    config=Config,
    inputs=Inputs,
    run=run,
    resources=("cpus", "memory", "accelerator", "labels", "retries"),
    check=check,
    outputs=("latency.json",),
    metrics=lambda config: [
        f"*/{name}" for name in ("milliseconds", "megabytes", "dimensions", "queries")
    ],
)
