"""A training run's curves, while it runs, for TensorBoard:

    tensorboard --logdir .ratchet/steps

The report has them too, at the end; they are no part of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType


class Tracker:
    """Writes scalars below `folder` (None: nowhere). first: the step that comes next; what an earlier life of the run
    wrote for that step and later is hidden."""

    def __init__(self, folder: Path | None, name: str, first: int) -> None:
        self.writer = None
        if folder is not None:
            from tensorboardX import SummaryWriter

            self.writer = SummaryWriter(str(folder / name.replace("/", "-")), purge_step=first, flush_secs=10)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Names with a slash are shown in groups."""
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.writer is not None:
            self.writer.close()
