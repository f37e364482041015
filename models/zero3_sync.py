"""Equal numbers of forward passes on all workers, as ZeRO-3 needs.

Under ZeRO-3 a layer's weights are gathered from all workers when it runs. A worker without rows left runs filler
passes, which contribute zero, until all workers are done:

    busy    more, pass, more, pass,   more, pass,   done
    idle    more, pass, done, filler, done, filler, done        each word: one all-reduced number
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Zero3Sync:
    """Counter of the forward passes of `module`: the outermost module that is called, before DeepSpeed wraps it.

    needed: whether workers wait for each other in a pass (ZeRO-3). If not, all methods do nothing.
    """

    def __init__(self, module: Any, device: torch.device | str, *, needed: bool) -> None:
        self.device = device
        self.needed = needed and dist.is_initialized() and dist.get_world_size() > 1
        self.following = False
        if self.needed:
            module.register_forward_pre_hook(self._before)

    def _before(self, *_: Any) -> None:
        if not self.following:
            self._passes(1)

    def _passes(self, own: int) -> int:
        """Return how many workers run a pass now. Collective."""
        total = torch.tensor([own], device=self.device)
        dist.all_reduce(total)
        return int(total)

    def finish(self, filler: Callable[[], Tensor]) -> Tensor | float:
        """Run `filler`, one forward pass, until all other workers are done. Returns a zero to add to the loss, so that
        the backward passes run too. Collective: all workers call it, before any other collective."""
        zero: Tensor | float = 0.0
        while self.needed and self._passes(0):
            self.following = True
            try:
                zero = zero + 0.0 * filler().sum()
            finally:
                self.following = False
        return zero
