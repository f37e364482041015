"""GradCache: gradients of a batch that does not fit in memory (Gao et al. 2021, "Scaling deep contrastive learning
batch size under memory limited setup").

    1. embed all rows, micro-batch by micro-batch, without a graph
    2. compute the gradient of the loss with respect to the embeddings
    3. embed each micro-batch again, with a graph, and backpropagate its rows' gradient

The result is the gradient of the whole batch, if both passes give the same vectors: dropout must not depend on the
state of a generator (`ratchet.models.dropout`). Legend: R rows of this worker, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

Embed = Callable[[np.ndarray], Tensor]
"""Maps row indices to vectors [rows, D], the same at each call."""


def make_backward_passes(
    embed: Embed, batches: Sequence[np.ndarray], gradient: Callable[[Tensor], tuple[Tensor, Tensor]], workers: int = 1
) -> list[Callable[[], Tensor]]:
    """Run steps 1 and 2 and return step 3 as one function per micro-batch, which returns a scalar to call backward on.

    batches: the row indices of each micro-batch, each row once, in any order; may be empty. gradient(vector_RD):
    returns (loss over all workers' rows, its gradient with respect to vector_RD [R, D]). The scalars add up to the
    loss, and their gradients, averaged over workers, to its gradient
    (`ratchet.models.losses.contrastive.scale_for_workers`).
    """
    with torch.no_grad():
        vectors = [embed(batch) for batch in batches]
    order = np.argsort(np.concatenate(batches), kind="stable")
    together = torch.cat(vectors)
    loss, gradient_RD = gradient(together[torch.from_numpy(order).to(together.device)])
    share = loss.detach() / max(1, len(batches))

    def embed_with_gradient(batch: np.ndarray) -> Tensor:
        gradient_BD = gradient_RD[torch.from_numpy(batch).to(gradient_RD.device)] * workers
        surrogate = (embed(batch).float() * gradient_BD).sum()
        return surrogate - surrogate.detach() + share  # the loss's value, the surrogate's gradient

    return [partial(embed_with_gradient, batch) for batch in batches]
