"""Shards of prompts answered by vLLM, through Ray Data's own processor for it (`ray.data.llm`).

vLLM batches requests as they come and go, so the requests of all shards stream through its engines together; a shard is
kept, as `map_shards` keeps it, when the last of its answers is back. A kill loses the shards that were under way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from jobs.job import Context, JobError
from jobs.shards import Tally, completed, keep, quiet

BATCH = 64
"""Requests that are handed to an engine at a time; it holds several such, and batches them its own way."""


class Asker(Protocol):
    """What is asked for a shard, and what is made of the answers."""

    def requests(self, source: Path) -> list[tuple[list[int], dict[str, Any]]]:
        """Each prompt's token ids, with vLLM's sampling parameters; equally many for each row."""
        ...

    def settings(self, longest: int) -> dict[str, Any]:
        """Of the engines, for prompts that have so many tokens with their longest answers."""
        ...

    def write(self, source: Path, target: Path, answers: Sequence[Sequence[int]]) -> Mapping[str, int]:
        """Makes the file `target` of the answers' token ids, in the order of the requests. Returns counts: `rows` and
        `tokens`."""
        ...


def ask_shards(
    context: Context, shards: Sequence[Path], model: Path, asker: Asker, out: Path, *, total_rows: int, each: int
) -> dict[str, int]:
    """One output file in `out` for each of `shards`, of the same name; returns the counts, added up.

    model: the folder that every worker opens an engine on. each: requests for a row. Ray must be running. Raises what
    `asker` raises, and JobError for an engine that does not start, or is lost `context.resources.retries` times more
    than it may be.
    """

    def make(targets: Mapping[Path, Path], done: int) -> None:
        asked = {source: asker.requests(source) for source in targets}
        missing = {source: len(requests) for source, requests in asked.items()}
        answers: dict[Path, list[Sequence[int]]] = {source: [()] * count for source, count in missing.items()}
        tally = Tally(context, done, total_rows)

        def finish(source: Path) -> None:
            keep(context, source, targets[source], lambda fresh: asker.write(source, fresh, answers.pop(source)))

        for source in [source for source, count in missing.items() if not count]:
            finish(source)
        for source, number, ids in _answers(context, model, asker, asked):
            answers[source][number] = ids
            missing[source] -= 1
            rows = (len(asked[source]) - missing[source]) // each
            tally.tell(str(source), rows, sum(map(len, answers[source])))
            if not missing[source]:
                finish(source)
        tally.flush()

    return completed(context, shards, out, make)


def _answers(
    context: Context, model: Path, asker: Asker, asked: Mapping[Path, list[tuple[list[int], dict[str, Any]]]]
) -> Iterator[tuple[Path, int, list[int]]]:
    """(source, which of its requests, token ids), as they come."""
    import ray
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    rows: list[dict[str, Any]] = [
        {"source": str(source), "number": number, "tokenized_prompt": prompt, "sampling_params": parameters}
        for source, requests in asked.items()
        for number, (prompt, parameters) in enumerate(requests)
    ]
    if not rows:
        return
    quiet()
    resources = context.resources
    blocks = math.ceil(len(rows) / BATCH)
    workers = min(resources.workers or 1, blocks)
    longest = max(len(row["tokenized_prompt"]) + row["sampling_params"]["max_tokens"] for row in rows)
    processor = build_processor(
        vLLMEngineProcessorConfig(
            model_source=str(model),
            engine_kwargs=asker.settings(longest),
            batch_size=BATCH,
            concurrency=(workers, workers),
            placement_group_config={"bundles": [{"CPU": resources.cpus, "GPU": resources.gpus}]},
            # Token ids go in and come out: how a conversation reads is not vLLM's to say.
            chat_template_stage=False,
            tokenize_stage=False,
            detokenize_stage=False,
            log_engine_metrics=False,
            runtime_env={"env_vars": {"VLLM_NO_USAGE_STATS": "1"}},
        ),
        postprocess=_answer,
        # Tasks of Ray Data's own would wait for the CPUs that the engines hold.
        preprocess_map_kwargs={"num_cpus": 0},
        postprocess_map_kwargs={"num_cpus": 0},
    )
    # By itself Ray Data replaces a lost engine without end, though some are lost to a request each time.
    limits = {"max_restarts": resources.retries, "max_task_retries": resources.retries}
    processor.get_stage_by_name("vLLMEngineStage").map_batches_kwargs.update(limits)
    try:
        for row in processor(ray.data.from_items(rows, override_num_blocks=blocks)).iter_rows():
            yield Path(row["source"]), int(row["number"]), [int(token) for token in row["ids"]]
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise JobError(
            f"step {context.step}: vLLM's engine on {model} did not start, or was lost {resources.retries + 1} times"
            f" ({reason}); expected it to get through; see its worker's log in Ray's, give workers more memory, or set"
            " engine=transformers"
        ) from error


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    return {"source": row["source"], "number": row["number"], "ids": row["generated_tokens"]}
