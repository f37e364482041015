"""The parallel map over threads."""

from __future__ import annotations

import io
import re

import pytest

from ratchet.orchestrator.store.parallel import map_parallel


@pytest.mark.parametrize("count", [0, 1, 5, 2_000])
def test_all_are_done_in_their_order(count: int) -> None:
    assert map_parallel(4, lambda number: 2 * number, range(count), "numbers") == list(
        range(0, 2 * count, 2)
    )


def test_a_terminal_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    map_parallel(4, lambda number: [number], range(600), "numbers")
    assert re.search(r"numbers.*100%", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()))


def test_what_goes_wrong_is_not_lost() -> None:
    def fail(number: int) -> list[int]:
        raise OSError(f"disk full at {number}")

    with pytest.raises(OSError, match="disk full at 0"):
        map_parallel(4, fail, range(100), "numbers")
