"""GradCache: gradients of a batch that does not fit in memory (Gao et al. 2021, "Scaling deep contrastive learning
batch size under memory limited setup").

    1. embed all rows, micro-batch by micro-batch, without a graph
    2. compute the gradient of the loss with respect to the embeddings
    3. embed each micro-batch again, with a graph and the same RNG state, and backpropagate its rows' gradient

The result is the gradient of the whole batch. Legend: R rows of this worker, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

Embed = Callable[[np.ndarray], Tensor]
"""Maps row indices to vectors [rows, D]."""


def make_backward_passes(
    embed: Embed,
    batches: Sequence[np.ndarray],
    gradient: Callable[[Tensor], tuple[Tensor, Tensor]],
    workers: int = 1,
) -> list[Callable[[], Tensor]]:
    """Run steps 1 and 2 and return step 3 as one function per micro-batch, which returns a scalar to call backward on.

    batches: the row indices of each micro-batch, each row once, in any order; may be empty. gradient(vector_RD):
    returns (loss over all workers' rows, its gradient with respect to vector_RD [R, D]). The scalars add up to the
    loss, and their gradients, averaged over workers, to its gradient
    (`ratchet.models.losses.contrastive.scale_for_workers`).
    """
    random, vectors = [], []
    with torch.no_grad():
        for batch in batches:
            random.append(_random_state())
            vectors.append(embed(batch))
    order = np.argsort(np.concatenate(batches), kind="stable")
    together = torch.cat(vectors)
    loss, gradient_RD = gradient(together[torch.from_numpy(order).to(together.device)])
    share = loss.detach() / max(1, len(batches))
    return [
        partial(
            _embed_with_gradient,
            embed,
            batch,
            state,
            gradient_RD[torch.from_numpy(batch).to(gradient_RD.device)] * workers,
            share,
        )
        for batch, state in zip(batches, random, strict=True)
    ]


def _embed_with_gradient(
    embed: Embed, batch: np.ndarray, state: list[Tensor], gradient_BD: Tensor, share: Tensor
) -> Tensor:
    with torch.random.fork_rng(devices=_devices()):
        _set_random_state(state)
        vector_BD = embed(batch)
    surrogate = (vector_BD.float() * gradient_BD).sum()
    return surrogate - surrogate.detach() + share  # the loss's value, the surrogate's gradient


def _devices() -> list[int]:
    return [torch.cuda.current_device()] if torch.cuda.is_initialized() else []


def _random_state() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in _devices())]


def _set_random_state(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    for device, own in zip(_devices(), state[1:], strict=True):
        torch.cuda.set_rng_state(own, device)
