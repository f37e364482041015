"""The interface through which a run reports its progress to the live view or to a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.orchestrator.job_interface.job import Progress


class RunListener:
    """Receiver of the events of a run. Methods may be called from any thread; in this base class they do nothing."""

    def show(self, event: Mapping[str, Any]) -> None:
        """Record an event of the run log (see `RunLog.event`)."""

    def progress(self, name: str, progress: Progress) -> None:
        """Record the progress of a step. This may be called at any rate."""

    def message(self, text: str) -> None:
        """Show a message."""
