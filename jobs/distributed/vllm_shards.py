"""Answers to shards of prompts with vLLM, through Ray Data's processor (`ray.data.llm`).

vLLM uses continuous batching, so the requests of all shards stream through its engines together. A shard is committed,
as in `map_shards`, when its last answer has arrived. A killed run repeats the unfinished shards.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from ratchet.data.tables import open_mapped_shard, write_mapped
from ratchet.errors import JobError
from ratchet.jobs.distributed.pieces import Piece, ShardOutput, commit_piece
from ratchet.jobs.distributed.progress_tally import ProgressTally
from ratchet.jobs.distributed.ray_data_pool import configure_ray_data
from ratchet.models.vllm import make_engine_args
from ratchet.orchestrator.job_interface import Context
from ratchet.orchestrator.job_interface.placement import make_ray_options
from ratchet.orchestrator.job_interface.shared_files import SharedFiles

REQUESTS_PER_BATCH = 64
"""Number of requests that an engine is given at a time. It holds several such batches and schedules them itself."""

Request = tuple[np.ndarray, dict[str, Any]]
"""The token ids of a prompt, int32, and vLLM's sampling parameters."""


def map_with_vllm(
    context: Context, shards: Sequence[Path], model: Path, dtype: str, client: Any, rows: int
) -> dict[str, int]:
    """Write one output file into `context.out` for each of `shards`, with the same stem. Return the summed counts. Ray
    must be running. Each worker starts an engine.

    client: its `requests(source)` returns the requests of a shard. Its `write(source, target, answers, tokens)` writes
    the file `target` from the token ids of the answers, in the order of the requests, and returns counts, among them
    `rows` and `tokens` (the number of generated tokens).
    rows: number of rows of all shards. Raises the exceptions of `client`, and JobError for an engine that does not
    start, or is lost more than `context.resources.retries` times."""
    output = ShardOutput(context, shards)
    if output.unfinished:
        _ask_shards(context, model, dtype, client, rows, output.unfinished, output.finished_rows)
    return output.collect(context.out, rows)


def _ask_shards(
    context: Context,
    model: Path,
    dtype: str,
    client: Any,
    total: int,
    shards: list[Piece],
    done: int,
) -> None:
    """Send the requests of all shards to the engines, and commit a shard when its last answer has arrived. Requests are
    kept in files, so memory holds only the requests of one shard, and the answers of unfinished shards."""
    counts = {}
    pieces = []
    longest = 0
    shard_of = {shard.source: shard for shard in shards}
    for source in shard_of:
        requests = client.requests(source)
        file = context.work / "requests" / f"{source.stem}.arrow"
        write_mapped(
            file, pa.Table.from_pylist([{"prompt": prompt, "how": how} for prompt, how in requests])
        )
        context.files.send(file)
        longest = max(
            [longest, *(len(prompt) + how.get("max_tokens", 0) for prompt, how in requests)]
        )
        counts[source] = len(requests)
        starts = range(0, len(requests), REQUESTS_PER_BATCH)
        pieces += [{"source": str(source), "file": str(file), "start": start} for start in starts]
    answers: dict[Path, dict[int, np.ndarray]] = {source: {} for source in shard_of}
    tokens: Counter[Path] = Counter()
    tally = ProgressTally(context, done, total)

    def finish(source: Path) -> None:
        own = [answer for _, answer in sorted(answers.pop(source).items())]
        commit_piece(
            context, shard_of[source], lambda file: client.write(source, file, own, tokens[source])
        )

    for source in [source for source, count in counts.items() if not count]:
        finish(source)
    for source, number, answer, size in _answers(context, model, dtype, client, pieces, longest):
        answers[source][number] = answer
        tokens[source] += size
        found = len(answers[source])
        tally.report(str(source), shard_of[source].rows * found // counts[source], tokens[source])
        if found == counts[source]:
            finish(source)
    tally.flush()


def _answers(
    context: Context,
    model: Path,
    dtype: str,
    client: Any,
    pieces: list[dict[str, Any]],
    longest: int,
) -> Iterator[tuple[Path, int, np.ndarray, int]]:
    """Yield (source, index of the request, answer, number of its tokens) in the order of arrival. pieces:
    see `_read_requests`. longest: maximum tokens of a request with its answer."""
    if not pieces:
        return
    # vLLM is an optional dependency.
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    configure_ray_data()
    resources = context.resources
    workers = min(resources.workers or 1, len(pieces))
    processor = build_processor(
        vLLMEngineProcessorConfig(
            model_source=str(model),
            task_type="generate",
            engine_kwargs=make_engine_args(
                model, dtype=dtype, longest=longest, gpus=resources.gpus
            ),
            batch_size=REQUESTS_PER_BATCH,
            concurrency=(workers, workers),
            placement_group_config={"bundles": [{"CPU": resources.cpus, "GPU": resources.gpus}]},
            # Requests and answers are token ids; the clients have applied chat templates.
            chat_template_stage=False,
            tokenize_stage=False,
            detokenize_stage=False,
            log_engine_metrics=False,
            runtime_env={"env_vars": {"VLLM_NO_USAGE_STATS": "1"}},
        ),
        postprocess=_answer,
        # Otherwise Ray Data's own tasks would wait for CPUs, which the engines hold.
        preprocess_map_kwargs={"num_cpus": 0},
        postprocess_map_kwargs={"num_cpus": 0},
    )
    # By default Ray Data replaces a lost engine without limit, even if a request crashes it each time.
    limits = {"max_restarts": resources.retries, "max_task_retries": resources.retries}
    stage = processor.get_stage_by_name("vLLMEngineStage")
    stage.map_batches_kwargs.update(limits | make_ray_options(resources))
    if context.files.downloads:
        stage.fn = _fetch_first(stage.fn, context.files, model)
    try:
        listed = ray.data.from_items(pieces, override_num_blocks=len(pieces))
        read = partial(_read_requests, context.files)
        requests = listed.flat_map(read, num_cpus=0)
        for row in processor(requests).iter_rows():
            yield (
                Path(row["source"]),
                int(row["number"]),
                np.asarray(row["answer"]),
                int(row["tokens"]),
            )
    except ray.exceptions.RayActorError as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise JobError(
            f"step {context.step}: vLLM's engine on {model} did not start, or was lost {resources.retries + 1} times"
            f" ({reason}); expected it to finish; see its worker's log in Ray's, give workers more memory, or set"
            " engine=transformers"
        ) from error


def _fetch_first(engine: Any, files: SharedFiles, model: Path) -> Any:
    """Return a class of engines that first bring the model to their machine."""

    def start(self: Any, *given: Any, **named: Any) -> None:
        files.fetch(model)
        engine.__init__(self, *given, **named)

    return type("FetchingEngine", (engine,), {"__init__": start})


def _read_requests(files: SharedFiles, piece: dict[str, Any]) -> list[dict[str, Any]]:
    """Read at most REQUESTS_PER_BATCH requests of a shard, beginning with the index `start`, from its file."""
    file = Path(piece["file"])
    files.fetch(file)
    table = open_mapped_shard(file).slice(piece["start"], REQUESTS_PER_BATCH)
    found = []
    for number, row in enumerate(table.to_pylist(), start=piece["start"]):
        found.append(
            {
                "source": piece["source"],
                "number": number,
                "tokenized_prompt": row["prompt"],
                "sampling_params": row["how"],
            }
        )
    return found


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    answer = row["generated_tokens"]
    return {
        "source": row["source"],
        "number": row["number"],
        "answer": answer,
        "tokens": len(answer),
    }
