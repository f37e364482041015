"""The same done to many things, several at a time, with word of how far it is.

A shared disk and a bucket answer each question late, and many questions as fast as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    threads: int, do: Callable[[Sequence[T]], list[F]], items: Sequence[T], what: str, tell: Tell = nobody
) -> list[F]:
    """What comes of all of them, in their order. do: is given some of them, in one of the threads."""
    size = min(MOST, len(items) // (4 * threads) + 1)  # few things are dealt to all threads too
    some = [items[start : start + size] for start in range(0, len(items), size)]
    found: list[F] = []
    with ThreadPoolExecutor(threads) as pool:
        for number, part in enumerate(pool.map(do, some), 1):
            found += part
            tell(what, min(number * size, len(items)), len(items))
    return found
