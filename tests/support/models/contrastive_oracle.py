"""InfoNCE with the whole similarity matrix: the reference for the losses that never store it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def symmetric_info_nce(
    left_ND: Tensor, right_ND: Tensor, *, temperature: float, mask_NN: Tensor | None = None
) -> Tensor:
    """Return the mean of both directions. mask_NN: True where two rows are not negatives of each other."""
    logits_NN = left_ND @ right_ND.T / temperature
    if mask_NN is not None:
        logits_NN = logits_NN.masked_fill(mask_NN, -torch.inf)
    own_N = torch.arange(len(left_ND))
    return (
        functional.cross_entropy(logits_NN, own_N) + functional.cross_entropy(logits_NN.T, own_N)
    ) / 2
