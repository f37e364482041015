"""Maps a worker over Parquet shards, piece by piece: in the step's process, or on several workers by Ray Data.

A worker is a class that is constructed once per process; see `piece_runner`. The pieces do not depend on the number of
workers, so neither does the result. If a worker is lost (killed, out of memory, node gone), its piece is repeated; if
the driver is lost, the next attempt continues with the unfinished pieces.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ratchet.data.tables import list_shards
from ratchet.jobs.distributed.error_json import error_from_json
from ratchet.jobs.distributed.piece_runner import MapWorker, PieceRunner
from ratchet.jobs.distributed.piece_size import MODEL_PIECES, SEARCH_PIECES
from ratchet.jobs.distributed.pieces import ShardOutput, count_rows
from ratchet.jobs.distributed.progress_tally import ProgressTally
from ratchet.jobs.distributed.resolve_dtype import resolve_dtype
from ratchet.models.devices import name_device
from ratchet.orchestrator.job_interface import Context


def map_shards(
    context: Context,
    shards: Sequence[Path],
    worker: type,
    arguments: Mapping[str, Any],
    out: Path,
    *,
    total_rows: int | None = None,
    pieces: int = SEARCH_PIECES,
) -> dict[str, int]:
    """Write one file into `out` for each of `shards`, with the same stem. Return the summed counts.

    arguments: keyword arguments of `worker`. out: `context.out`, or a folder below it. total_rows: expected number of
    rows, for a check. pieces: see `choose_piece_rows`. Ray must be running; the caller may be a task.

    Raises the exception of a worker with its type; JobError if the worker of one piece was lost more than
    `context.resources.retries` times, which suggests that the piece is the cause; an error of ray.exceptions if Ray
    gave up."""
    output = ShardOutput(context, shards, out.relative_to(context.out), pieces=pieces)
    _process([output], [MapWorker(context, worker, arguments)])
    return output.collect(out, total_rows)


def map_queries(
    context: Context,
    worker: type,
    config: Any,
    inputs: Any,
    queries: Path,
    columns: Sequence[str],
    out: Path,
) -> dict[str, int]:
    """Do the same as `map_shards` for the shards in the folder `queries`, which have these columns. worker: a class
    with the arguments `config`, `inputs` and `device`, that searches a corpus."""
    shards = list_shards(queries)
    rows = count_rows(shards, columns)
    device = "cuda" if context.resources.gpus else "cpu"
    arguments = {"config": config, "inputs": inputs, "device": device}
    return map_shards(context, shards, worker, arguments, out, total_rows=rows)


@dataclass(frozen=True)
class ModelMap:
    """A map with a worker that runs a model: what `map_model` needs to know."""

    shards: Sequence[Path]
    worker: type
    """A class with the arguments `config`, `inputs`, `device` and `batch_tokens`."""
    config: Any
    inputs: Any
    rows: int
    """Expected number of rows."""
    suffix: str = "parquet"
    pieces: int = MODEL_PIECES


def make_model_map(
    context: Context,
    worker: type,
    config: Any,
    inputs: Any,
    folder: Path,
    columns: Sequence[str],
    **options: Any,
) -> ModelMap:
    """Return the map over the shards in a folder, which have these columns, with the dtype of the step. options:
    `suffix` and `pieces`."""
    shards = list_shards(folder)
    rows = count_rows(shards, columns)
    return ModelMap(shards, worker, resolve_dtype(context, config), inputs, rows, **options)


Describe = Callable[[Context, Any, Any], ModelMap | None]
"""(context, config, inputs) -> the map of a step. None: it has nothing to map."""


def map_model(context: Context, own: ModelMap, describe: Describe) -> dict[str, int]:
    """Do the same as `map_shards`, into `context.out`, with a worker that runs a model.

    The steps in `context.together` load the same model, so their pieces are processed too. These steps find them
    finished later. describe: their maps. An error in such a map is not raised here: its step repeats it."""
    output, worker = _prepare(context, own, context.resources.gpus)
    outputs = [output]
    workers = [worker]
    for other, config, inputs in context.together:
        with suppress(Exception):
            found = describe(other, config, inputs)
            if found is not None:
                output, worker = _prepare(other, found, context.resources.gpus)
                outputs.append(output)
                workers.append(worker)
    _process(outputs, workers)
    return outputs[0].collect(context.out, own.rows)


def _prepare(context: Context, own: ModelMap, gpus: float | None) -> tuple[ShardOutput, MapWorker]:
    """gpus: of a worker."""
    arguments = {
        "config": own.config,
        "inputs": own.inputs,
        "device": name_device(gpus),
        "batch_tokens": context.resources.batch_tokens,
    }
    output = ShardOutput(context, own.shards, suffix=own.suffix, pieces=own.pieces)
    return output, MapWorker(context, own.worker, arguments)


def _process(outputs: Sequence[ShardOutput], workers: Sequence[MapWorker]) -> None:
    """Process the unfinished pieces of several maps, by the workers of the first map's step. An error in another map
    ends the work on that map only."""
    context = workers[0].context
    work = []
    for number, output in enumerate(outputs):
        work += [(number, piece) for piece in output.unfinished]
    if not work:
        return
    runner = PieceRunner(workers)
    done = sum(output.finished_rows for output in outputs)
    total = sum(output.rows for output in outputs)
    if context.resources.workers != 1:
        # One worker does not need Ray Data: seconds of imports.
        from ratchet.jobs.distributed.ray_data_pool import process_on_workers

        process_on_workers(context, runner, work, done, total)
        return
    tally = ProgressTally(context, done, total)
    try:
        for number, piece in work:
            failure = runner.run(number, piece, tally.report)
            if failure and number == 0:
                raise error_from_json(failure) from None
    finally:
        del runner
        torch.cuda.empty_cache()  # the process goes on, and other steps need the GPU memory
    tally.flush()
