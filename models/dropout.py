"""Dropout that does not depend on how a batch is divided among workers and micro-batches.

torch draws masks one after the other from the generator of the process, so the mask of a token depends on everything
that this process computed before. Here it depends on (seed, epoch, training step, row, position, layer) only:

    key of a token              hash(seed, epoch, step, row id, position)
    its mask in a layer         pattern number  hash(key, layer) mod PATTERNS  of a table of random masks

Passes that are computed again (gradient checkpointing, GradCache) get the same masks, and there is no state to save.
A lookup in a table is also cheaper than drawing: on CPUs torch draws with one thread.

Legend: B rows, L tokens (padded), D features, M layers with dropout, P patterns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ratchet.errors import ModelError

PATTERNS = 4096
"""Masks in a table. Two tokens have the same mask in a layer with probability 1 / PATTERNS."""


class DropoutMasks:
    """Dropout masks of a model. They depend on the training step (`start_step`), row ids and positions (`tokens`)."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.device = torch.device("cpu")
        self._step_key = 0
        self._layer_M: Tensor = torch.zeros(0, dtype=torch.int64)
        self._pattern_MBL: Tensor | None = None
        self._tables: dict[tuple[int, float], Tensor] = {}

    def install(self, model: nn.Module) -> None:
        """Replace a model's dropout layers (LoRA's) by layers with these masks. The model must stay on its device."""
        self.device = next(model.parameters()).device
        layers = 0
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Dropout) and child.p > 0:
                    setattr(parent, name, Dropout(child.p, self, layers).train(child.training))
                    layers += 1
        self._layer_M = _mix(torch.arange(layers, device=self.device) + 1)

    def start_step(self, epoch: int, step: int) -> None:
        """Use the masks of this training step from now on."""
        self._step_key = int(np.random.SeedSequence([self.seed, epoch, step]).generate_state(1, np.uint64)[0] >> 1)

    @contextmanager
    def tokens(self, row_BL: Tensor, position_BL: Tensor) -> Iterator[None]:
        """Context manager around a forward pass over tokens [B, L].

        row_BL, position_BL: int64, broadcast to [B, L]. A row id identifies a text within the training step, on
        whichever worker; positions count from the start of the text. Padding tokens may have any row id and position.
        """
        if not len(self._layer_M):
            yield
            return
        key_BL = _mix(_mix(row_BL.to(self.device) + self._step_key) + position_BL.to(self.device))
        with self._use(_mix(key_BL + self._layer_M[:, None, None]) % PATTERNS):
            yield

    def checkpoint_contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return the `context_fn` of torch.utils.checkpoint: a recomputed pass uses the masks of the first one."""
        return nullcontext(), self._use(self._pattern_MBL)

    def apply(self, x: Tensor, p: float, layer: int) -> Tensor:
        """Apply dropout to x [B, L, D], [B * L, D] or, for each row's first token, [B, D]. Else raise ModelError."""
        if self._pattern_MBL is None:
            raise ModelError("dropout: a forward pass in training mode without `DropoutMasks.tokens` around it")
        pattern_BL = self._pattern_MBL[layer]
        if x.shape[:-1].numel() == pattern_BL.numel():
            pattern = pattern_BL.reshape(x.shape[:-1])
        elif x.shape[:-1] == pattern_BL.shape[:1]:
            pattern = pattern_BL[:, 0]
        else:
            raise ModelError(
                f"lora_dropout: a layer computes {tuple(x.shape)} for tokens {tuple(pattern_BL.shape)}; expected one"
                " vector per token or row, so that masks do not depend on the batch; set lora_dropout=0, or leave this"
                " layer out of target_modules"
            )
        return _ApplyMask.apply(x, self._get_table(x.shape[-1], p), pattern, 1 / (1 - p))

    @contextmanager
    def _use(self, pattern_MBL: Tensor | None) -> Iterator[None]:
        before = self._pattern_MBL
        self._pattern_MBL = pattern_MBL
        try:
            yield
        finally:
            self._pattern_MBL = before

    def _get_table(self, features: int, p: float) -> Tensor:
        """Return masks, bool [P, D], True for kept features. The CPU draws them: they are the same on every device."""
        key = features, p
        if key not in self._tables:
            drawn_PD = np.random.default_rng([self.seed, features]).random((PATTERNS, features), np.float32)
            self._tables[key] = torch.from_numpy(drawn_PD >= p).to(self.device)
        return self._tables[key]


class Dropout(nn.Module):
    """A dropout layer whose masks come from `DropoutMasks`."""

    def __init__(self, p: float, masks: DropoutMasks, layer: int) -> None:
        super().__init__()
        self.p = p
        self.masks = masks
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.masks.apply(x, self.p, self.layer)
        return x


class _ApplyMask(torch.autograd.Function):
    """x * mask * scale. The mask is looked up again in the backward pass, so it occupies no memory in between. A bool
    table takes a quarter of a float32 one: 78 MB for the 18,944 features of a 7B model's MLP."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table_PD: Tensor, pattern: Tensor, scale: float) -> Tensor:
        ctx.table_PD = table_PD
        ctx.scale = scale
        ctx.save_for_backward(pattern)
        return torch.where(table_PD[pattern], x, 0).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (pattern,) = ctx.saved_tensors
        return torch.where(ctx.table_PD[pattern], gradients[0], 0).mul_(ctx.scale), None, None, None


def _mix(x: Tensor) -> Tensor:
    """Hash int64 numbers to non-negative ones (the finalizer of SplitMix64, Steele et al. 2014)."""
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47  # the constants of the paper, as signed numbers
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return (x ^ (x >> 31 & 0x1FFFFFFFF)) & 0x7FFFFFFFFFFFFFFF
