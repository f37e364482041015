"""Who is told how a run goes: a person's live view, or the sweep whose trial the run is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from jobs.job import Progress


class Watcher(Protocol):
    """Every method may be called from any thread; what they say is said in `view.View`."""

    def hit(self, name: str) -> None: ...

    def started(self, name: str, attempt: int) -> None: ...

    def progress(self, name: str, progress: Progress) -> None: ...

    def waiting(self, name: str, on: str) -> None: ...

    def retrying(self, name: str, reason: str, delay_s: float) -> None: ...

    def finished(self, name: str, seconds: float, headline: Mapping[str, float]) -> None: ...

    def failed(self, name: str, message: str) -> None: ...

    def skipped(self, name: str, because: str) -> None: ...

    def message(self, text: str) -> None: ...
