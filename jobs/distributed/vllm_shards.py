"""Generates answers to, embeds or scores shards of texts with vLLM, through Ray Data's processor for it
(`ray.data.llm`).

vLLM batches requests continuously, so the requests of all shards stream through its engines together. A shard is
committed, as in `map_shards`, when its last answer has arrived. A killed run repeats the unfinished shards.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow.parquet as pq
import ray

from ratchet.errors import JobError
from ratchet.jobs.distributed.shard_map import commit_shard, complete_shards, map_shards
from ratchet.jobs.distributed.shard_queue import ProgressTally
from ratchet.models.decoder import decoder
from ratchet.models.devices import name_device
from ratchet.models.vllm import make_engine_args
from ratchet.orchestrator.job_interface import Context
from ratchet.orchestrator.job_interface.placement import make_ray_options

REQUESTS_PER_BATCH = 64
"""Requests that are handed to an engine at a time. An engine holds several batches and schedules them itself."""

Task = Literal["generate", "embed", "classify"]
"""What is asked of vLLM. The answers are token ids, vectors, or scores of one number."""
Request = tuple[np.ndarray, dict[str, Any]]
"""The token ids of a text, int32, and vLLM's sampling or pooling parameters."""


class ShardClient(Protocol):
    """Makes the requests of a shard, and its output file from the answers."""

    task: Task
    engine_args: dict[str, Any]
    """The engine's arguments for this task."""

    def requests(self, source: Path) -> list[Request]:
        """Return the requests of a shard."""
        ...

    def write(self, source: Path, target: Path, answers: Sequence[np.ndarray], tokens: int) -> Mapping[str, int]:
        """Write the file `target` from the answers, in the order of the requests. tokens: those that were generated, or
        read. Return counts, among them `rows` and `tokens`."""
        ...


def run_engine(
    context: Context,
    shards: Sequence[Path],
    config: Any,
    inputs: Any,
    worker: type,
    client: Any,
    rows: int,
    suffix: str = "parquet",
) -> dict[str, int]:
    """Write one output file into `context.out` for each of `shards`, with the same stem, by the engine of the config:
    `worker`s of transformers, or the requests of a `client` to vLLM. Both are classes that take the config and the
    inputs. Return the sums of the counts.

    With vLLM each worker starts an engine on the model, with the adapter merged into its weights. Ray must be running.
    Raises what `worker` or `client` raises, and JobError for an engine that does not start or is lost more than
    `context.resources.retries` times.
    """
    if config.engine == "vllm":
        requests, folder = client(config, inputs), inputs.model
        if inputs.adapter is not None:
            folder = context.work / "merged"
            decoder.merge(inputs.model, inputs.adapter, folder)
        process = partial(_ask_shards, context, folder, config.dtype, requests, rows)
        return complete_shards(context, shards, context.out, process, rows, suffix)
    arguments = {"config": config, "inputs": inputs, "device": name_device(context.resources.gpus)}
    arguments |= {"batch_tokens": context.resources.batch_tokens}
    return map_shards(context, shards, worker, arguments, context.out, total_rows=rows, suffix=suffix)


def _ask_shards(
    context: Context, model: Path, dtype: str, client: ShardClient, total: int, targets: Mapping[Path, Path], done: int
) -> None:
    """Ask the engines for all shards, and commit each when its last answer has arrived."""
    asked = {source: client.requests(source) for source in targets}
    missing = {source: len(requests) for source, requests in asked.items()}
    answers = {source: [np.empty(0)] * count for source, count in missing.items()}
    rows = {source: pq.read_metadata(source).num_rows for source in targets}
    tokens: Counter[Path] = Counter()
    tally = ProgressTally(context, done, total)

    def finish(source: Path) -> None:
        own = answers.pop(source)
        commit_shard(context, source, targets[source], lambda file: client.write(source, file, own, tokens[source]))

    for source in [source for source, count in missing.items() if not count]:
        finish(source)
    for source, number, answer in _answers(context, model, dtype, client, asked):
        answers[source][number] = answer
        missing[source] -= 1
        tokens[source] += len(answer if client.task == "generate" else asked[source][number][0])
        whole = len(asked[source])
        tally.report(str(source), rows[source] * (whole - missing[source]) // whole, tokens[source])
        if not missing[source]:
            finish(source)
    tally.flush()


def _answers(
    context: Context, model: Path, dtype: str, client: ShardClient, asked: Mapping[Path, Sequence[Request]]
) -> Iterator[tuple[Path, int, np.ndarray]]:
    """Yield (source, number of the request, answer) in the order in which answers arrive."""
    # vLLM is an optional dependency.
    from ray.data import DataContext
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    kind = "sampling_params" if client.task == "generate" else "pooling_params"
    rows: list[dict[str, Any]] = [
        {"source": str(source), "number": number, "tokenized_prompt": prompt, kind: parameters}
        for source, requests in asked.items()
        for number, (prompt, parameters) in enumerate(requests)
    ]
    if not rows:
        return
    # Failures are raised, so Ray Data's log only repeats them.
    DataContext.get_current().enable_progress_bars = False
    DataContext.get_current().print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    resources = context.resources
    blocks = math.ceil(len(rows) / REQUESTS_PER_BATCH)
    workers = min(resources.workers or 1, blocks)
    longest = max(len(row["tokenized_prompt"]) + row[kind].get("max_tokens", 0) for row in rows)
    engine_args = make_engine_args(model, dtype=dtype, longest=longest, gpus=resources.gpus)
    processor = build_processor(
        vLLMEngineProcessorConfig(
            model_source=str(model),
            task_type=client.task,
            engine_kwargs=engine_args | client.engine_args,
            batch_size=REQUESTS_PER_BATCH,
            concurrency=(workers, workers),
            placement_group_config={"bundles": [{"CPU": resources.cpus, "GPU": resources.gpus}]},
            # Token ids go in and come out; chat templates are applied by the task.
            chat_template_stage=False,
            tokenize_stage=False,
            detokenize_stage=False,
            log_engine_metrics=False,
            runtime_env={"env_vars": {"VLLM_NO_USAGE_STATS": "1"}},
        ),
        postprocess=_answer,
        # Ray Data's own tasks would wait for the CPUs that the engines hold.
        preprocess_map_kwargs={"num_cpus": 0},
        postprocess_map_kwargs={"num_cpus": 0},
    )
    # By default Ray Data replaces a lost engine without limit, even if a request crashes it each time.
    limits = {"max_restarts": resources.retries, "max_task_retries": resources.retries}
    processor.get_stage_by_name("vLLMEngineStage").map_batches_kwargs.update(limits | make_ray_options(resources))
    try:
        for row in processor(ray.data.from_items(rows, override_num_blocks=blocks)).iter_rows():
            yield Path(row["source"]), int(row["number"]), np.asarray(row["answer"])
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise JobError(
            f"step {context.step}: vLLM's engine on {model} did not start, or was lost {resources.retries + 1} times"
            f" ({reason}); expected it to finish; see its worker's log in Ray's, give workers more memory, or set"
            " engine=transformers"
        ) from error


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    answer = row["generated_tokens"] if row["embeddings"] is None else row["embeddings"]
    return {"source": row["source"], "number": row["number"], "answer": answer}
