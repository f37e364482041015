"""Workers that hold a part of each weight only (ZeRO-3) must run equally many forward passes.

Each layer's weights are gathered from all workers when it runs. A worker that has nothing left to compute runs passes
that count for nothing, for as long as another has something to compute:

    busy    more, pass, more, pass,   more, pass,   done
    idle    more, pass, done, filler, done, filler, done        each word: one number, added over the workers
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Lockstep:
    """Watches the passes of a module: the outermost one that is called, and before DeepSpeed takes it. needed: whether
    workers wait for each other in a pass at all; if not, nothing happens here."""

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
        """How many workers run a pass now."""
        total = torch.tensor([own], device=self.device)
        dist.all_reduce(total)
        return int(total)

    def finish(self, filler: Callable[[], Tensor]) -> Tensor | float:
        """Runs `filler`, which makes one pass, as often as other workers still run theirs. A zero to add to the loss,
        so that its backward passes run too. Collective: all workers call it, before any other collective."""
        zero: Tensor | float = 0.0
        while self.needed and self._passes(0):
            self.following = True
            try:
                zero = zero + 0.0 * filler().sum()
            finally:
                self.following = False
        return zero
