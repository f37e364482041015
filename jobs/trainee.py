"""What is trained, as `training_loop` sees it: the job's own class, and what it may ask about where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jobs.job import Context

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Place:
    """Which worker this is."""

    rank: int
    workers: int
    device: str


class Trainee(Protocol):
    """What is trained. Made once in each worker with `place=` and the arguments given to `train`."""

    model: Any
    """A torch module; what requires a gradient is trained, in float32 or (with float32 master weights) bfloat16."""
    steps: Sequence[int]
    """Optimizer steps of each epoch."""

    def start(self) -> dict[str, float]:
        """Metrics of what is to be beaten. Called on every worker, before training and not when it goes on."""
        ...

    def parts(self, epoch: int, step: int) -> Sequence[Callable[[], tuple[Tensor, int]]]:
        """A step, cut into parts that fit in memory. Each gives (this worker's share of the loss, the tokens that it
        took); the sum over parts, as a mean over workers, is the batch's loss. All workers have equally many."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Metrics of the model as it is; every worker takes part and returns the same."""
        ...

    def save(self, folder: Path) -> None:
        """Writes what training made; called on one worker."""
        ...


def checkpoint_folder(context: Context, step: int) -> Path:
    """Where the model after so many steps lies, while the step is at work and `options.checkpoints` asks for it."""
    return context.work / f"checkpoint-step-{step}"


def gathered(value: Any) -> list[Any]:
    """Every worker's value, by rank. All workers must call it."""
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
