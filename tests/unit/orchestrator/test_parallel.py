"""The same done to many things, several at a time."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from ratchet.orchestrator.store.parallel import MOST, map_parallel


@pytest.mark.parametrize("count", [0, 1, 4, 5, 16, 17, 2_000, 10 * MOST + 1])
def test_all_are_done_once_in_their_order_and_the_end_is_told(count: int) -> None:
    reported: list[tuple[str, int, int | None]] = []
    given: list[int] = []

    def odd(number: int) -> list[int]:
        given.append(number)
        return [number] if number % 2 else []

    found = map_parallel(4, odd, range(count), "numbers", lambda *said: reported.append(said))
    assert found == list(range(1, count, 2))
    assert sorted(given) == list(range(count))
    told = [done for _, done, _ in reported]
    assert told == sorted(told)
    assert max((later - done for done, later in pairwise([0, *told])), default=0) <= MOST
    assert reported[-1:] == ([("numbers", count, count)] if count else [])


def test_few_are_dealt_to_all_threads() -> None:
    all_here = threading.Barrier(4, timeout=30)

    def meet(number: int) -> list[int]:
        all_here.wait()
        return [number]

    assert map_parallel(4, meet, range(8), "numbers") == list(range(8))


def test_what_goes_wrong_is_not_lost() -> None:
    def fail(number: int) -> list[int]:
        raise OSError(f"disk full at {number}")

    with pytest.raises(OSError, match="disk full at 0"):
        map_parallel(4, fail, range(100), "numbers")
