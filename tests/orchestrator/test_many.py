"""The same done to many things, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from orchestrator.store.many import MOST, at_once


@pytest.mark.parametrize("count", [0, 1, 4, 5, 16, 17, 2_000, 10 * MOST + 1])
def test_all_are_done_once_in_their_order_and_the_end_is_told(count: int) -> None:
    heard: list[tuple[str, int, int | None]] = []
    parts: list[int] = []

    def odd(some: Sequence[int]) -> list[int]:
        parts.append(len(some))
        return [number for number in some if number % 2]

    found = at_once(4, odd, range(count), "numbers", lambda *said: heard.append(said))
    assert found == list(range(1, count, 2))
    assert sum(parts) == count
    assert max(parts, default=0) <= MOST
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)
    assert heard[-1:] == ([("numbers", count, count)] if count else [])


def test_few_are_dealt_to_all_threads() -> None:
    all_here = threading.Barrier(4, timeout=30)

    def meet(some: Sequence[int]) -> list[int]:
        all_here.wait()
        return list(some)

    assert at_once(4, meet, range(8), "numbers") == list(range(8))


def test_what_goes_wrong_is_not_lost() -> None:
    def fail(some: Sequence[int]) -> list[int]:
        raise OSError(f"disk full at {some[0]}")

    with pytest.raises(OSError, match="disk full at 0"):
        at_once(4, fail, range(100), "numbers")
