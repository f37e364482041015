"""Pieces on several workers, by Ray Data: a pool of actors, each of which takes one piece after another.

Ray Data starts actors as the cluster has room for them, replaces lost ones, and repeats their pieces. It does so
without limit, so a piece counts its starts. An exception arrives as JSON, and is raised again with its type, also if it
cannot be pickled.
"""

import logging
import pickle
from collections.abc import Sequence
from typing import Any

import ray
import ray.data
from ray import cloudpickle
from ray.data import ActorPoolStrategy, DataContext

from ratchet.jobs.distributed.error_json import error_from_json, error_to_json
from ratchet.jobs.distributed.piece_runner import PieceRunner
from ratchet.jobs.distributed.pieces import Piece, remove_copy
from ratchet.jobs.distributed.progress_tally import ProgressTally
from ratchet.orchestrator.job_interface import Context
from ratchet.orchestrator.job_interface.placement import make_ray_options
from ratchet.orchestrator.job_interface.worker import make_this_node_strategy


def process_on_workers(
    context: Context, runner: PieceRunner, work: Sequence[tuple[int, Piece]], done: int, total: int
) -> None:
    """Process pieces on at most `context.resources.workers` workers, which get copies of the runner.

    work: (number of the map, piece). done, total: rows. Raises the exception of the first map with its type."""
    configure_ray_data()
    resources = context.resources
    workers = min(resources.workers or 1, len(work))
    tally_class: Any = ray.remote(num_cpus=0, scheduling_strategy=make_this_node_strategy())
    tally = tally_class(ProgressTally).remote(context, done, total)
    items = [{"map": number, "piece": pickle.dumps(piece)} for number, piece in work]
    # As bytes, which are unpickled after the worker's process has begun to answer.
    pickled = cloudpickle.dumps(runner)
    records = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        PieceActor,
        fn_constructor_args=[pickled, tally],
        batch_size=1,
        # One piece at a time: a piece that waits for a busy actor could run on an idle one.
        compute=ActorPoolStrategy(
            min_size=1, initial_size=workers, max_size=workers, max_tasks_in_flight_per_actor=1
        ),
        num_cpus=resources.cpus,
        num_gpus=resources.gpus,
        scheduling_strategy="SPREAD",
        **make_ray_options(resources),
    )
    for record in records.iter_rows():
        if record["failure"] and record["map"] == 0:
            raise error_from_json(record["failure"])
    ray.get(tally.flush.remote())


def configure_ray_data() -> None:
    """Keep Ray Data's bars and logs off the terminal: progress and failures are reported by the orchestrator."""
    settings = DataContext.get_current()
    settings.enable_progress_bars = False
    settings.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)


class PieceActor:
    """An actor of the pool."""

    def __init__(self, pickled: bytes, tally: Any) -> None:
        self.pickled = pickled
        self.tally = tally
        self.runner: PieceRunner | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Process the piece of a batch. Return the number of its map, and the error as JSON, or an empty string."""
        number = int(batch["map"][0])
        try:
            if self.runner is None:
                self.runner = cloudpickle.loads(self.pickled)
            piece = pickle.loads(batch["piece"][0])
            failure = self.runner.run(number, piece, self.tally.report.remote)
            if self.runner.maps[number].context.files.downloads:
                remove_copy(piece)  # it was sent, and this machine may get thousands
        except Exception as error:  # the code cannot be unpickled
            failure = error_to_json(error)
        return {"map": [number], "failure": [failure]}
