"""The interface through which a run reports its progress to the live view or to a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.orchestrator.job_interface.job import Progress


class RunListener:
    """Receiver of the events of a run. Methods may be called from any thread; in this base class they do nothing."""

    def show(self, event: Mapping[str, Any]) -> None:
        """Call the method for an event of a run log."""
        step = event["step"]
        match event["event"]:
            case "hit":
                self.hit(step)
            case "started":
                self.started(step, event["attempt"])
            case "waiting":
                self.waiting(step, event["on"])
            case "retry":
                self.retrying(step, event["reason"].splitlines()[0], event["wait"])
            case "done":
                self.finished(step, event["seconds"], event.get("metrics", {}))
            case "failed":
                self.failed(step, event["reason"])
            case "skipped":
                self.skipped(step, event["because"])

    def hit(self, name: str) -> None:
        """Record a reused step."""

    def started(self, name: str, attempt: int) -> None:
        """Record that a step runs in this process. The first `attempt` is 1."""

    def progress(self, name: str, progress: Progress) -> None:
        """Record the progress of a step. This may be called at any rate."""

    def waiting(self, name: str, on: str) -> None:
        """Record that another driver runs this step; `on` names it."""

    def retrying(self, name: str, reason: str, delay_s: float) -> None:
        """Record that a step is retried in `delay_s` seconds after a transient error."""

    def finished(self, name: str, seconds: float, headline: Mapping[str, float]) -> None:
        """Record that a step is done; `headline` holds the metrics to show."""

    def failed(self, name: str, message: str) -> None:
        """Record that a step failed."""

    def skipped(self, name: str, because: str) -> None:
        """Record that a step is skipped because step `because` failed."""

    def message(self, text: str) -> None:
        """Show a message."""
