"""measure_speed: the time in which embedders embed a query, and the size of their weights.

The models are measured one after the other in one process, on one core or one GPU. The times are of this machine, so
unlike other results they differ from run to run.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ratchet.jobs.model_checks import check_as_used
from ratchet.models.model_files import list_weight_files
from ratchet.orchestrator.job_interface import Context, Job, Parents, PositiveInt, Result, Unit

REPEATS = 5
"""Times that each query is embedded. The shortest counts: others waited for other processes."""
SECONDS = 30.0
"""Time after which no further query is embedded."""


@dataclass(frozen=True)
class Config:
    queries: Annotated[PositiveInt, Unit("queries")] = 50
    """Number of queries that are timed, each by itself."""


@dataclass(frozen=True)
class Inputs:
    models: tuple[Path, ...]
    """Model folders."""
    texts: Path
    """Shards of queries."""


def check(config: Config, inputs: Inputs, parents: Parents) -> None:
    for model in inputs.models or ():
        if model is not None:
            check_as_used(model)


def run(context: Context, config: Config, inputs: Inputs) -> Result:
    import torch

    from ratchet.data.tables import read_shards
    from ratchet.models.embedder import encoder

    torch.set_num_threads(1)  # several would wait for each other on a machine that does other work
    device = "cuda" if context.resources.gpus else "cpu"
    texts = read_shards(inputs.texts, ["text"])["text"][: config.queries].to_pylist()
    metrics = {}
    for number, model in enumerate(inputs.models):
        embedder = encoder.load(model, device=device)
        size = sum((model / name).stat().st_size for name in list_weight_files(model))
        metrics[f"{number}/latency"] = round(1000 * time_queries(embedder, texts), 2)
        metrics[f"{number}/megabytes"] = round(size / 1e6, 1)
    return Result(metrics)


def time_queries(embedder: Any, texts: list[str]) -> float:
    """Return the median over queries of the shortest time to embed one, in seconds."""
    shortest: dict[str, float] = {}
    end = time.monotonic() + SECONDS
    for text in texts * REPEATS:
        start = time.perf_counter()
        embedder.encode([text], "query")
        took = time.perf_counter() - start
        shortest[text] = min(took, shortest.get(text, took))
        if time.monotonic() > end:
            break
    return statistics.median(shortest.values())


JOB = Job(
    "measure_speed",
    Config,
    Inputs,
    run,
    resources=("cpus", "gpus", "memory", "accelerator", "labels", "retries"),
    check=check,
    metrics=("*/latency", "*/megabytes"),
)
