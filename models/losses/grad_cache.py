"""GradCache: gradients of a batch that does not fit in memory (Gao et al. 2021, "Scaling deep contrastive learning
batch size under memory limited setup").

    1. embed all rows, micro-batch by micro-batch, without a graph
    2. compute the gradient of the loss with respect to the embeddings
    3. embed each micro-batch again, with a graph, and backpropagate its rows' gradient

The result is the gradient of the whole batch. Both passes have the same dropout: the second one of a micro-batch starts
from the state of the random generators that the first one started from. Legend: R rows of this worker, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

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


def make_backward_passes(
    embed: Embed, batches: Sequence[np.ndarray], gradient: Callable[[Tensor], tuple[Tensor, Tensor]], workers: int = 1
) -> list[Callable[[], Tensor]]:
    """Run steps 1 and 2 and return step 3 as one function per micro-batch, which returns a scalar to call backward on.

    batches: the row indices of each micro-batch, each row once, in any order; may be empty. gradient(vector_RD):
    returns (loss over all workers' rows, its gradient with respect to vector_RD [R, D]). The scalars add up to the
    loss, and their gradients, averaged over workers, to its gradient
    (`ratchet.models.losses.contrastive.scale_for_workers`).
    """
    states = []
    vectors = []
    with torch.no_grad():
        for batch in batches:
            states.append(RandomState())
            vectors.append(embed(batch))
    order = np.argsort(np.concatenate(batches), kind="stable")
    together = torch.cat(vectors)
    loss, gradient_RD = gradient(together[torch.from_numpy(order).to(together.device)])
    share = loss.detach() / max(1, len(batches))

    def embed_with_gradient(batch: np.ndarray, state: RandomState) -> Tensor:
        gradient_BD = gradient_RD[torch.from_numpy(batch).to(gradient_RD.device)] * workers
        with state.replay():
            vector_BD = embed(batch)
        surrogate = (vector_BD.float() * gradient_BD).sum()
        return surrogate - surrogate.detach() + share  # the loss's value, the surrogate's gradient

    return [partial(embed_with_gradient, batch, state) for batch, state in zip(batches, states, strict=True)]
