"""The work on pieces in one process: a worker per map, all of which share a loaded model."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ratchet.errors import JobError
from ratchet.jobs.distributed.error_json import error_to_json
from ratchet.jobs.distributed.pieces import Piece, commit_piece
from ratchet.jobs.distributed.progress_tally import REPORT_SECONDS
from ratchet.jobs.distributed.resolve_dtype import check_dtype
from ratchet.models import shared_models
from ratchet.models.free_cores import FreeCores
from ratchet.orchestrator.job_interface import Context, append_json, read_json_lines
from ratchet.orchestrator.job_interface.worker import check_worker, find_existing_paths


class ReportProgress(Protocol):
    """Reports the number of finished rows of the current piece, and the number of tokens processed for them."""

    def __call__(self, rows: int, tokens: int = 0) -> None: ...


Worker = Callable[[Piece, Path, ReportProgress], Mapping[str, int]]
"""The worker of a map, one instance per process: (piece, target, report) -> counts, among them `rows`. It writes the
file `target`."""


@dataclass(frozen=True)
class MapWorker:
    """How the worker of a step's map is made."""

    context: Context
    worker: type
    arguments: Mapping[str, Any]
    paths: tuple[Path, ...] = field(init=False)
    """The paths in the arguments, which must exist on the worker's machine too."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", find_existing_paths(self.arguments))


class PieceRunner:
    """Runs pieces of one or several maps. Workers are constructed at their first piece."""

    def __init__(self, maps: Sequence[MapWorker]) -> None:
        self.maps = maps
        self.workers: dict[int, Worker] = {}
        self.models: dict[Any, Any] = {}
        self.cores: FreeCores | None = None
        self.failures: dict[int, str] = {}
        """Map -> its error as JSON. Its other pieces are left out here."""

    def run(self, number: int, piece: Piece, tell: Callable[[str, int, int], Any]) -> str:
        """Run a piece of a map. Return the error as JSON, or an empty string. tell: `ProgressTally.report`, local or of
        an actor."""
        if number not in self.failures:
            try:
                self._run(number, piece, tell)
            except Exception as error:
                self.failures[number] = error_to_json(error)
        return self.failures.get(number, "")

    def _run(self, number: int, piece: Piece, tell: Callable[[str, int, int], Any]) -> None:
        own = self.maps[number]
        context = own.context
        if number not in self.workers:
            check_worker(context, own.paths)
            check_dtype(context)
        context.files.fetch(piece.source)
        piece.target.parent.mkdir(parents=True, exist_ok=True)  # not all machines share a disk
        starts = piece.target.with_name(f"{piece.target.name}.starts")
        lost = _count_start(context, starts)
        if lost > context.resources.retries:
            raise JobError(
                f"step {context.step}, shard {piece.source}: its worker was lost {lost} times (killed, out of memory);"
                " expected it to finish; give workers more memory, or lower batch_tokens or workers"
            )
        if self.cores is None:  # in this process, not in the one that the runner was pickled in
            self.cores = FreeCores(context.resources.threads)
        if number not in self.workers:
            with shared_models.share(self.models):
                self.workers[number] = own.worker(**own.arguments)
        worker = self.workers[number]
        report = _make_reporter(piece, tell, self.cores)
        counts = commit_piece(context, piece, lambda file: worker(piece, file, report))
        starts.unlink(missing_ok=True)
        tell(str(piece.target), counts["rows"], counts.get("tokens", 0))


def _make_reporter(
    piece: Piece, tell: Callable[[str, int, int], Any], cores: FreeCores
) -> ReportProgress:
    reported = 0.0

    def report(rows: int, tokens: int = 0) -> None:
        nonlocal reported
        cores.look()
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            tell(str(piece.target), int(rows), int(tokens))

    return report


def _count_start(context: Context, file: Path) -> int:
    """Note in a file that work on a piece begins. Return how often this attempt began it before, and was lost, on this
    machine if machines share no disk."""
    begun = read_json_lines(file)
    append_json(file, {"attempt": context.attempt})
    return sum(line["attempt"] == context.attempt for line in begun)
