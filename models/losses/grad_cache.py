"""GradCache: gradients of a batch that does not fit in memory (Gao et al. 2021, "Scaling deep contrastive learning
batch size under memory limited setup").

    1. embed all rows, micro-batch by micro-batch, without a graph
    2. compute the gradient of the loss with respect to the embeddings
    3. embed each micro-batch again, with a graph, and backpropagate its rows' gradient

The result is the gradient of the whole batch. Both passes have the same dropout: the second one of a micro-batch starts
from the state of the random generators that the first one started from. Legend: R rows of this worker, D dimensions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Embed = Callable[[np.ndarray], Tensor]
"""Maps row indices to vectors [rows, D], the same at each call with the same random numbers."""


class RandomState:
    """State of torch's generators, of the CPU and of the process's GPU, when it was constructed."""

    def __init__(self) -> None:
        self.cpu = torch.get_rng_state()
        self.gpus = []
        if torch.cuda.is_initialized():
            self.gpus.append(torch.cuda.current_device())
            self.gpu = torch.cuda.get_rng_state()

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Draw the random numbers of this state again, then go on from the state before."""
        with torch.random.fork_rng(self.gpus):
            torch.set_rng_state(self.cpu)
            if self.gpus:
                torch.cuda.set_rng_state(self.gpu)
            yield


@dataclass(frozen=True)
class CachedGradient:
    """A micro-batch after steps 1 and 2."""

    rows: np.ndarray
    """Row indices, int64 [B]."""
    gradient_BD: Tensor
    """Gradient of the loss with respect to the vectors of these rows, times the number of workers."""
    loss_share: Tensor
    """The loss, divided by the number of micro-batches. Scalar."""
    random_state: RandomState
    """State of the generators before the rows were embedded."""


def cache_gradients(
    embed: Embed,
    batches: Sequence[np.ndarray],
    gradient: Callable[[Tensor], tuple[Tensor, Tensor]],
    workers: int = 1,
) -> list[CachedGradient]:
    """Do steps 1 and 2.

    batches: the row indices of each micro-batch, each row once, in any order; may be empty. gradient(vector_RD):
    returns (loss over all workers' rows, its gradient with respect to vector_RD [R, D]).
    """
    states = []
    vectors = []
    with torch.no_grad():
        for rows in batches:
            states.append(RandomState())
            vectors.append(embed(rows))
    order = np.argsort(np.concatenate(batches), kind="stable")
    together = torch.cat(vectors)
    loss, gradient_RD = gradient(together[torch.from_numpy(order).to(together.device)])
    loss_share = loss.detach() / max(1, len(batches))
    cached = []
    for rows, state in zip(batches, states, strict=True):
        gradient_BD = gradient_RD[torch.from_numpy(rows).to(gradient_RD.device)] * workers
        cached.append(CachedGradient(rows, gradient_BD, loss_share, state))
    return cached


def compute_surrogate_loss(embed: Embed, cached: CachedGradient) -> Tensor:
    """Do step 3: return a scalar to call backward on. It has the value of `cached.loss_share`. The gradients of all
    micro-batches add up, averaged over workers, to that of the loss
    (`ratchet.models.losses.contrastive.scale_for_workers`)."""
    with cached.random_state.replay():
        vector_BD = embed(cached.rows)
    surrogate = (vector_BD.float() * cached.gradient_BD).sum()
    return (
        surrogate - surrogate.detach() + cached.loss_share
    )  # the loss's value, the surrogate's gradient
