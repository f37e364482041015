"""The parallel map over threads."""

from __future__ import annotations

import io
import re
import threading

import pytest

from ratchet.orchestrator.store.parallel import MOST, map_parallel


@pytest.mark.parametrize("count", [0, 1, 4, 5, 16, 17, 2_000, 10 * MOST + 1])
def test_all_are_done_once_in_their_order(count: int) -> None:
    given: list[int] = []

    def odd(number: int) -> list[int]:
        given.append(number)
        return [number] if number % 2 else []

    found = map_parallel(4, odd, range(count), "numbers")
    assert found == list(range(1, count, 2))
    assert sorted(given) == list(range(count))


def test_a_terminal_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    map_parallel(4, lambda number: [number], range(3 * MOST), "numbers")
    assert re.search(r"numbers.*600/600", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()))


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
