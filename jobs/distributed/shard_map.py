"""Maps a worker over Parquet shards, piece by piece: in the step's process, or on several workers by Ray Data.

A worker is a class that is constructed once per process and called with (piece, file to write, report). It returns
counts. The pieces do not depend on the number of workers, so neither does the result. If a worker is lost (killed, out
of memory, node gone), its piece is repeated; if the driver is lost, the next attempt continues with the unfinished
pieces.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from ratchet.errors import JobError
from ratchet.jobs.distributed.error_json import error_from_json, error_to_json
from ratchet.jobs.distributed.piece_size import MODEL_PIECES, SEARCH_PIECES
from ratchet.jobs.distributed.pieces import Piece, commit_piece, complete_shards
from ratchet.jobs.distributed.progress_tally import REPORT_SECONDS, ProgressTally
from ratchet.jobs.distributed.resolve_dtype import check_dtype
from ratchet.models.devices import name_device
from ratchet.orchestrator.job_interface import Context, append_json, read_json_lines
from ratchet.orchestrator.job_interface.worker import check_worker, find_existing_paths


class ReportProgress(Protocol):
    """Reports the number of finished rows of the current piece, and the number of tokens processed for them."""

    def __call__(self, rows: int, tokens: int = 0) -> None: ...


Worker = Callable[[Piece, Path, ReportProgress], Mapping[str, int]]
"""The worker of `map_shards`, one instance per process: (piece, target, report) -> counts, among them `rows`. It writes
the file `target`."""


def map_shards(
    context: Context,
    shards: Sequence[Path],
    worker: type,
    arguments: Mapping[str, Any],
    out: Path,
    *,
    total_rows: int | None = None,
    suffix: str = "parquet",
    pieces: int = SEARCH_PIECES,
) -> dict[str, int]:
    """Write one file into `out` for each of `shards`, with the same stem. Return the summed counts.

    arguments: keyword arguments of `worker`. total_rows: expected number of rows, for progress and a check. pieces: see
    `choose_piece_rows`. See `complete_shards` for the rest. Ray must be running; the caller may be a task.

    Raises the exception of a worker with its type; JobError if the worker of one piece was lost more than
    `context.resources.retries` times, which suggests that the piece is the cause; an error of ray.exceptions if Ray
    gave up."""
    process = partial(_process, context, partial(worker, **arguments), arguments, total_rows)
    return complete_shards(context, shards, out, process, total_rows, suffix=suffix, pieces=pieces)


def map_model(
    context: Context,
    shards: Sequence[Path],
    worker: type,
    config: Any,
    inputs: Any,
    rows: int,
    suffix: str = "parquet",
    pieces: int = MODEL_PIECES,
) -> dict[str, int]:
    """Do the same as `map_shards` into `context.out`, with a worker that runs a model."""
    arguments = {"config": config, "inputs": inputs, "device": name_device(context.resources.gpus)}
    arguments["batch_tokens"] = context.resources.batch_tokens
    return map_shards(
        context,
        shards,
        worker,
        arguments,
        context.out,
        total_rows=rows,
        suffix=suffix,
        pieces=pieces,
    )


def _process(
    context: Context,
    make_worker: Callable[[], Worker],
    arguments: Mapping[str, Any],
    total_rows: int | None,
    pieces: list[Piece],
    done: int,
) -> None:
    paths = find_existing_paths(arguments)
    runner = PieceRunner(context, paths, make_worker)
    if context.resources.workers != 1:
        # One worker does not need Ray Data: seconds of imports.
        from ratchet.jobs.distributed.ray_data_pool import process_on_workers

        process_on_workers(context, runner.run, pieces, done, total_rows)
        return
    tally = ProgressTally(context, done, total_rows)
    try:
        for piece in pieces:
            runner.run(piece, tally.report)
    except Exception as error:  # as from a worker, with the traceback as text
        raise error_from_json(error_to_json(error)) from None
    finally:
        runner.worker = None
        torch.cuda.empty_cache()  # the process goes on, and other steps need the GPU memory
    tally.flush()


class PieceRunner:
    """Constructs the worker at the first piece, and calls it for each piece."""

    def __init__(
        self, context: Context, paths: Sequence[Path], make_worker: Callable[[], Worker]
    ) -> None:
        """paths: as for `check_worker`."""
        self.context = context
        self.paths = paths
        self.make_worker = make_worker
        self.worker: Worker | None = None

    def run(self, piece: Piece, tell: Callable[[str, int, int], Any]) -> None:
        """Process a piece. tell: `ProgressTally.report`, local or of an actor."""
        if self.worker is None:
            check_worker(self.context, (piece.source, piece.target.parent, *self.paths))
            check_dtype(self.context)
        starts = piece.target.with_name(f"{piece.target.name}.starts")
        lost = _count_start(self.context, starts)
        if lost > self.context.resources.retries:
            raise JobError(
                f"step {self.context.step}, shard {piece.source}: its worker was lost {lost} times (killed, out of"
                " memory); expected it to finish; give workers more memory, or lower batch_tokens or workers"
            )
        if self.worker is None:
            torch.set_num_threads(self.context.resources.threads)
            self.worker = self.make_worker()
        worker: Worker = self.worker
        report = _make_reporter(piece, tell)
        counts = commit_piece(self.context, piece, lambda file: worker(piece, file, report))
        starts.unlink(missing_ok=True)
        tell(str(piece.target), counts["rows"], counts.get("tokens", 0))


def _make_reporter(piece: Piece, tell: Callable[[str, int, int], Any]) -> ReportProgress:
    reported = 0.0

    def report(rows: int, tokens: int = 0) -> None:
        nonlocal reported
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            tell(str(piece.target), int(rows), int(tokens))

    return report


def _count_start(context: Context, file: Path) -> int:
    """Note in a file that work on a piece begins. Return how often this attempt began it before, and was lost."""
    begun = read_json_lines(file)
    append_json(file, {"attempt": context.attempt})
    return sum(line["attempt"] == context.attempt for line in begun)
