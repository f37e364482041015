"""How a step's progress gets from its workers, wherever they run, to who started it."""

from __future__ import annotations

from typing import Any

from jobs.job import Progress


class Board:
    """An actor that holds the last progress of every step until it is taken."""

    def __init__(self) -> None:
        self.latest: dict[str, Progress] = {}

    def put(self, step: str, progress: Progress) -> None:
        self.latest[step] = progress

    def take(self) -> dict[str, Progress]:
        taken, self.latest = self.latest, {}
        return taken


class Reporter:
    """`Context.progress` on a cluster: tells the board and does not wait. Travels to any worker."""

    def __init__(self, board: Any, step: str) -> None:
        self.board = board
        self.step = step

    def __call__(self, progress: Progress) -> None:
        self.board.put.remote(self.step, progress)


def start_board() -> Any:
    """A board on the cluster that this process is connected to."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    free = PlacementGroupSchedulingStrategy(placement_group=None)  # type: ignore[arg-type]  # None: outside of any
    return ray.remote(num_cpus=0, scheduling_strategy=free)(Board).remote()
