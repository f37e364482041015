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
    """A board on this machine."""
    import ray

    return ray.remote(num_cpus=0, scheduling_strategy=beside())(Board).remote()


def beside() -> Any:
    """Where an actor lives that is of no use without this process: on the same machine. No other that is lost can take
    it along; and outside of a sweep's trial's place, in which there is no room for more."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
