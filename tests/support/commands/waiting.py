"""Waiting for something that another process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], because: str, seconds: float = 300) -> T:
    """Return the first true value of the condition. Fails with `because` if there is none in time."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, because
        time.sleep(0.05)
    return found
