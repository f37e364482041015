"""A parallel map over threads with a progress bar, for storage with high latency."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rich.progress import track

from ratchet.orchestrator.job_interface.clean_output import CleanConsole

T = TypeVar("T")
F = TypeVar("F")


def map_parallel(threads: int, do: Callable[[T], F], items: Sequence[T], what: str) -> list[F]:
    """Return `do(item)` for all items, in order; `do` is called in threads.

    what: label of the progress bar, which is drawn only if the standard error is a terminal.
    """
    console = CleanConsole(stderr=True)
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(do, items)
        hidden = not console.is_terminal
        return list(
            track(found, what, total=len(items), console=console, transient=True, disable=hidden)
        )
