"""Gradients of a loss over a batch that does not fit in memory at once (Gao et al. 2021, "Scaling deep contrastive
learning batch size under memory limited setup").

    1. embed all rows, part by part, without a graph
    2. the loss's gradient with respect to the embeddings
    3. embed each part once more, with a graph and the same random numbers, and send its rows' gradient back

The gradient of the parameters is that of the whole batch. Legend: R rows of this worker, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

Embed = Callable[[np.ndarray], Tensor]
"""Vectors [rows, D] of some of the rows, by their numbers."""


def parts(
    embed: Embed,
    batches: Sequence[np.ndarray],
    gradient: Callable[[Tensor], tuple[Tensor, Tensor]],
    workers: int = 1,
) -> list[Callable[[], Tensor]]:
    """What step 3 has to do, one function per batch, after steps 1 and 2. Each gives a scalar to call backward on.

    batches: the rows, each once, in any order; may be empty. gradient(vector_RD): (the loss of all workers' rows, its
    gradient with respect to these [R, D]). The scalars' sum is the loss; their gradients' sum, as a mean over workers,
    is the loss's (`models.losses.worker_share`).
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
            _again, embed, batch, state, gradient_RD[torch.from_numpy(batch).to(gradient_RD.device)] * workers, share
        )
        for batch, state in zip(batches, random, strict=True)
    ]


def _again(embed: Embed, batch: np.ndarray, state: list[Tensor], gradient_BD: Tensor, share: Tensor) -> Tensor:
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
