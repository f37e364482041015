"""Generates answers to shards of prompts with vLLM, through Ray Data's processor for it (`ray.data.llm`).

vLLM batches requests continuously, so the requests of all shards stream through its engines together. A shard is
committed, as in `map_shards`, when its last answer has arrived. A killed run repeats the unfinished shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import ray

from ratchet.errors import JobError
from ratchet.jobs.distributed.progress_tally import ProgressTally
from ratchet.jobs.distributed.shard_map import commit_shard, complete_shards, silence_ray_data
from ratchet.orchestrator.job_interface import Context

REQUESTS_PER_BATCH = 64
"""Requests that are handed to an engine at a time. An engine holds several batches and schedules them itself."""


class ShardGenerator(Protocol):
    """Makes the requests of a shard, and its output file from the answers."""

    def requests(self, source: Path) -> list[tuple[list[int], dict[str, Any]]]:
        """Return the token ids of each prompt with vLLM's sampling parameters; the same number for each row."""
        ...

    def settings(self, longest: int) -> dict[str, Any]:
        """Return the engine's arguments for sequences of up to `longest` tokens, prompt and answer together."""
        ...

    def write(self, source: Path, target: Path, answers: Sequence[Sequence[int]]) -> Mapping[str, int]:
        """Write the file `target` from the answers' token ids, in the order of the requests. Return the counts `rows`
        and `tokens`."""
        ...


def generate_shards(
    context: Context,
    shards: Sequence[Path],
    model: Path,
    generator: ShardGenerator,
    out: Path,
    *,
    total_rows: int,
    each: int,
) -> dict[str, int]:
    """Write one output file into `out` for each of `shards`, with the same name. Return the sums of the counts.

    Each worker starts an engine on the folder `model`. `each` is the number of requests per row. Ray must be running.
    Raises what `generator` raises, and JobError for an engine that does not start or is lost more than
    `context.resources.retries` times.
    """

    def process(targets: Mapping[Path, Path], done: int) -> None:
        asked = {source: generator.requests(source) for source in targets}
        missing = {source: len(requests) for source, requests in asked.items()}
        answers: dict[Path, list[Sequence[int]]] = {source: [()] * count for source, count in missing.items()}
        tally = ProgressTally(context, done, total_rows)

        def finish(source: Path) -> None:
            commit_shard(
                context, source, targets[source], lambda file: generator.write(source, file, answers.pop(source))
            )

        for source in [source for source, count in missing.items() if not count]:
            finish(source)
        for source, number, ids in _answers(context, model, generator, asked):
            answers[source][number] = ids
            missing[source] -= 1
            rows = (len(asked[source]) - missing[source]) // each
            tally.report(str(source), rows, sum(map(len, answers[source])))
            if not missing[source]:
                finish(source)
        tally.flush()

    return complete_shards(context, shards, out, process)


def _answers(
    context: Context,
    model: Path,
    generator: ShardGenerator,
    asked: Mapping[Path, list[tuple[list[int], dict[str, Any]]]],
) -> Iterator[tuple[Path, int, list[int]]]:
    """Yield (source, number of the request, token ids) in the order in which answers arrive."""
    # vLLM is an optional dependency.
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    rows: list[dict[str, Any]] = [
        {"source": str(source), "number": number, "tokenized_prompt": prompt, "sampling_params": parameters}
        for source, requests in asked.items()
        for number, (prompt, parameters) in enumerate(requests)
    ]
    if not rows:
        return
    silence_ray_data()
    resources = context.resources
    blocks = math.ceil(len(rows) / REQUESTS_PER_BATCH)
    workers = min(resources.workers or 1, blocks)
    longest = max(len(row["tokenized_prompt"]) + row["sampling_params"]["max_tokens"] for row in rows)
    processor = build_processor(
        vLLMEngineProcessorConfig(
            model_source=str(model),
            engine_kwargs=generator.settings(longest),
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
    processor.get_stage_by_name("vLLMEngineStage").map_batches_kwargs.update(limits)
    try:
        for row in processor(ray.data.from_items(rows, override_num_blocks=blocks)).iter_rows():
            yield Path(row["source"]), int(row["number"]), [int(token) for token in row["ids"]]
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise JobError(
            f"step {context.step}: vLLM's engine on {model} did not start, or was lost {resources.retries + 1} times"
            f" ({reason}); expected it to finish; see its worker's log in Ray's, give workers more memory, or set"
            " engine=transformers"
        ) from error


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    return {"source": row["source"], "number": row["number"], "ids": row["generated_tokens"]}
