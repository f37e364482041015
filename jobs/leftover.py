"""Frees what Ray Train leaves of a worker group that failed to start.

Where a worker is lost between the group's being built and its training's begin, Ray Train 2.60 keeps the others and the
group's place, and waits for another place for the next group: for ever, on machines that hold but one. Such callbacks
are named by RAY_TRAIN_CALLBACKS; they live in the training's controller.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

if TYPE_CHECKING:
    from ray.train.v2._internal.execution.worker_group import WorkerGroup, WorkerGroupContext
    from ray.train.v2._internal.execution.worker_group.state import WorkerGroupState

VARIABLE = "RAY_TRAIN_CALLBACKS"


class Leftover(WorkerGroupCallback, ControllerCallback):
    """Remembers the group that is up, and ends it before another is started, or at the end, if nobody else did."""

    def __init__(self) -> None:
        self.up: WorkerGroupState | None = None

    def after_worker_group_start(self, worker_group: WorkerGroup) -> None:
        self.up = worker_group.get_worker_group_state()

    def before_worker_group_shutdown(self, worker_group: WorkerGroup) -> None:
        self.up = None

    def before_worker_group_start(self, worker_group_context: WorkerGroupContext) -> None:
        self._free()

    async def before_controller_shutdown(self) -> None:
        self._free()

    def _free(self) -> None:
        if self.up is not None:
            self.up.shutdown()
            self.up = None


def freed() -> None:
    """Has the trainings that this process starts from now on free them. First of the callbacks, since one that fails
    keeps those behind it from being called."""
    name = f"{__name__}.{Leftover.__name__}"
    others = [other for other in os.environ.get(VARIABLE, "").split(",") if other and other != name]
    os.environ[VARIABLE] = ",".join([name, *others])
