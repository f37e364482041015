"""Preemption notices of spot machines: time for a checkpoint before the machine is taken away."""

from __future__ import annotations

import time

from ray.train import get_preemption_info

POLL_SECONDS = 5.0
"""Time between polls. A poll waits for all workers, and a notice comes at least half a minute ahead."""


class PreemptionWatcher:
    """Polls for preemption notices. Every worker of a training run has one."""

    def __init__(self) -> None:
        self.polled_at = time.monotonic()
        self.known = False

    def is_due(self) -> bool:
        """Return whether it is time for a poll by this worker's clock. One worker decides for all."""
        return time.monotonic() - self.polled_at > POLL_SECONDS

    def poll(self) -> bool:
        """Return whether a new notice came. All workers must call it at the same training step."""
        self.polled_at = time.monotonic()
        known, self.known = self.known, get_preemption_info() is not None
        return self.known and not known
