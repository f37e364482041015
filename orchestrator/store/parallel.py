"""A parallel map over threads that reports its progress, for storage with high latency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MOST = 200
"""Maximum number of items per task: the granularity of interruption and of progress."""

T = TypeVar("T")
F = TypeVar("F")


OnProgress = Callable[[str, int, int | None], None]
"""Receives progress: what the items are called, how many are done, and of how many (None: unknown)."""


def ignore_progress(what: str, done: int, total: int | None) -> None:
    """Do nothing."""


def map_parallel(
    threads: int,
    do: Callable[[T], Iterable[F]],
    items: Sequence[T],
    what: str,
    on_progress: OnProgress = ignore_progress,
) -> list[F]:
    """Return all results of `do(item)` for all items, in order. `do` is called and iterated in one of the threads."""

    def task(some: Sequence[T]) -> list[F]:
        return [found for item in some for found in do(item)]

    size = min(MOST, len(items) // (4 * threads) + 1)  # so that all threads get work for few items too
    tasks = [items[start : start + size] for start in range(0, len(items), size)]
    all_found: list[F] = []
    with ThreadPoolExecutor(threads) as pool:
        for number, found in enumerate(pool.map(task, tasks), 1):
            all_found += found
            on_progress(what, min(number * size, len(items)), len(items))
    return all_found
