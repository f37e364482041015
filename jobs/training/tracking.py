"""Live curves of a training run, for TensorBoard:

    tensorboard --logdir .ratchet/steps

A resumed run continues its curves. The result of the step contains the curves too, but not these logs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from tensorboardX import SummaryWriter

QUEUED = 1_000_000
"""Number of waiting values above which `log` would wait for the disk."""
CLOSE_SECONDS = 20.0
"""Time to write the waiting values at the end. On a full disk the writer's thread ends, and they are never written."""


class Tracker(AbstractContextManager["Tracker"]):
    """Writes scalars below `folder`. folder: None: nothing is written.

    first_step: the next training step; TensorBoard hides the values that an earlier attempt wrote for it and later
    steps."""

    def __init__(self, folder: Path | None, name: str, first_step: int) -> None:
        self.writer: SummaryWriter | None = None
        if folder is None:
            return
        self.writer = SummaryWriter(
            str(folder / name.replace("/", "-")),
            purge_step=first_step,
            max_queue=QUEUED,
            flush_secs=10,
            # Names of event files contain only the second: two attempts within one second would share a file.
            filename_suffix=f".{os.getpid()}-{first_step}",
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log scalars; return at once. TensorBoard groups names by the part before a slash."""
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.writer is not None:
            thread = threading.Thread(target=self.writer.close, daemon=True)
            thread.start()
            thread.join(CLOSE_SECONDS)
