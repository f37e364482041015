"""The interface between the training loop and a job: what is trained, and on which worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from ratchet.jobs.training.evaluation import Evaluation


@dataclass(frozen=True)
class WorkerInfo:
    """One worker of a training run."""

    rank: int
    world_size: int
    device: str


class TrainTask(Protocol):
    """A training task: model, batches, loss and evaluation. Each worker makes one, from `worker=` and the arguments of
    `train`."""

    model: Any
    """A torch module. Parameters that require a gradient are trained, in float32 or in bfloat16 with float32 master
    weights."""
    steps: Sequence[int]
    """Training steps of each epoch."""

    def evaluate_start(self) -> Evaluation:
        """Evaluate the current best model. Called on every worker before training, not after a resume."""
        ...

    def parts(self, epoch: int, step: int) -> Sequence[Callable[[], tuple[Tensor, int]]]:
        """Split a training step into parts that fit in memory. Each returns this worker's share of the loss and the
        number of tokens. The sum over parts, averaged over workers, is the loss of the batch. All workers return the
        same number of parts."""
        ...

    def evaluate(self) -> Evaluation:
        """Evaluate the model as it is. All workers take part and return the same."""
        ...

    def save(self, folder: Path) -> None:
        """Write what training made. Called on one worker."""
        ...


def gather_objects(value: Any) -> list[Any]:
    """Return every worker's value, by rank. All workers must call it."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
