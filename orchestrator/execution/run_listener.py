"""The interface through which a run reports its progress: to the live view, or to a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ratchet.orchestrator.job_interface.job import Progress


class RunListener(Protocol):
    """Methods may be called from any thread. They are documented in `cli.live_view.LiveView`."""

    def hit(self, name: str) -> None: ...

    def started(self, name: str, attempt: int) -> None: ...

    def progress(self, name: str, progress: Progress) -> None: ...

    def waiting(self, name: str, on: str) -> None: ...

    def retrying(self, name: str, reason: str, delay_s: float) -> None: ...

    def finished(self, name: str, seconds: float, headline: Mapping[str, float]) -> None: ...

    def failed(self, name: str, message: str) -> None: ...

    def skipped(self, name: str, because: str) -> None: ...

    def message(self, text: str) -> None: ...
