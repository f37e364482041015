"""The notice before a machine is taken away, such as one from the spot market: time for a checkpoint."""

from __future__ import annotations

import time

ASK_SECONDS = 5.0
"""Between questions: to ask is to wait for all workers, and a notice comes half a minute ahead at least."""


class Notice:
    """Asked by every worker of a training."""

    def __init__(self) -> None:
        self.asked_at = time.monotonic()
        self.known = False

    def due(self) -> bool:
        """Whether it is time to ask again, by this worker's clock. One worker decides for all."""
        return time.monotonic() - self.asked_at > ASK_SECONDS

    def given(self) -> bool:
        """Whether a notice came that was not known yet. All workers must call it at the same step."""
        from ray.train import get_preemption_info

        self.asked_at = time.monotonic()
        known, self.known = self.known, get_preemption_info() is not None
        return self.known and not known
