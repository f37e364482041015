"""Cleanup of worker groups that failed to start.

If a worker is lost between the creation of its group and the start of training, Ray Train 2.60 keeps the other workers
and their placement group, and waits for resources for a new group. On machines that hold only one group it waits
forever. Callbacks that are named in RAY_TRAIN_CALLBACKS run in the controller of the training run.
"""

import os

from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.worker_group import WorkerGroup, WorkerGroupContext
from ray.train.v2._internal.execution.worker_group.state import WorkerGroupState

VARIABLE = "RAY_TRAIN_CALLBACKS"


class WorkerGroupCleanup(WorkerGroupCallback, ControllerCallback):
    """Shuts down a worker group that Ray Train left running, before the next group starts and at the end."""

    def __init__(self) -> None:
        self.group: WorkerGroupState | None = None

    def after_worker_group_start(self, worker_group: WorkerGroup) -> None:
        self.group = worker_group.get_worker_group_state()

    def before_worker_group_shutdown(self, worker_group: WorkerGroup) -> None:
        self.group = None

    def before_worker_group_start(self, worker_group_context: WorkerGroupContext) -> None:
        self._shut_down()

    async def before_controller_shutdown(self) -> None:
        self._shut_down()

    def _shut_down(self) -> None:
        if self.group is not None:
            self.group.shutdown()
            self.group = None


def install_cleanup() -> None:
    """Register the cleanup callback for later training runs of this process. It becomes the first callback, because a
    callback that fails prevents the calls of those after it."""
    names = [f"{__name__}.{WorkerGroupCleanup.__name__}", *os.environ.get(VARIABLE, "").split(",")]
    os.environ[VARIABLE] = ",".join(dict.fromkeys(filter(None, names)))  # each once
