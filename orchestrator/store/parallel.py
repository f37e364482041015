"""A parallel map over threads with a progress bar, for storage with high latency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ratchet.orchestrator.job_interface.terminal import CleanConsole

MOST = 200
"""Maximum number of items per task: the granularity of interruption and of progress."""

T = TypeVar("T")
F = TypeVar("F")


def map_parallel(threads: int, do: Callable[[T], Iterable[F]], items: Sequence[T], what: str) -> list[F]:
    """Return the concatenated results of `do(item)` for all items, in order. `do` is called and iterated in a thread.

    what: label of the progress bar, which is drawn only if the standard error is a terminal.
    """

    def task(some: Sequence[T]) -> list[F]:
        made: list[F] = []
        for item in some:
            for found in do(item):
                made.append(found)
        return made

    size = min(MOST, len(items) // (4 * threads) + 1)  # small tasks if there are few items, so that all threads work
    tasks = []
    for start in range(0, len(items), size):
        tasks.append(items[start : start + size])
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = CleanConsole(stderr=True)
    all_found: list[F] = []
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars,
        ThreadPoolExecutor(threads) as pool,
    ):
        bar = bars.add_task(what, total=len(items))
        for given, found in zip(tasks, pool.map(task, tasks), strict=True):
            all_found += found
            bars.advance(bar, len(given))
    return all_found
