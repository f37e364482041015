"""The same done to many things, several at a time, with word of how far it is.

A shared disk and a bucket answer each question late, and many questions as fast as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

MOST = 200
"""Things of one task at most: what an interruption waits for, and how often it is told how far it is."""

T = TypeVar("T")
F = TypeVar("F")


class Tell(Protocol):
    """Hears how far it is: so many `what`, of so many if that is known."""

    def __call__(self, what: str, done: int, total: int | None) -> None: ...


def nobody(what: str, done: int, total: int | None) -> None:
    """Where nobody listens."""


def at_once(
    threads: int, do: Callable[[T], Iterable[F]], items: Sequence[T], what: str, tell: Tell = nobody
) -> list[F]:
    """All that comes of each of them, in their order. do: is called in one of the threads, and drawn from there."""

    def task(some: Sequence[T]) -> list[F]:
        return [found for item in some for found in do(item)]

    size = min(MOST, len(items) // (4 * threads) + 1)  # few things are dealt to all threads too
    tasks = [items[start : start + size] for start in range(0, len(items), size)]
    all_found: list[F] = []
    with ThreadPoolExecutor(threads) as pool:
        for number, found in enumerate(pool.map(task, tasks), 1):
            all_found += found
            tell(what, min(number * size, len(items)), len(items))
    return all_found
