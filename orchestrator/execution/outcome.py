"""The outcome of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ratchet.orchestrator.execution.schedule import Status
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.step import Summary


@dataclass(frozen=True)
class Outcome:
    """The final state of a run: the status of each step, and the messages of those that failed."""

    plan: Plan
    summary: Summary
    status: Mapping[str, Status]
    failures: Mapping[str, str]
    """Step -> message."""
    interrupted: bool

    @property
    def word(self) -> str:
        return "interrupted" if self.interrupted else "failed" if self.failures else "finished"
