"""The workers of a training run. Ray Train's controller imports this module, so it imports no model library."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class WorkerInfo:
    """One worker of a training run."""

    rank: int
    world_size: int
    device: str


def gather_objects(value: Any) -> list[Any]:
    """Return every worker's value, by rank. All workers must call it."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
