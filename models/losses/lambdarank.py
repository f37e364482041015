"""LambdaRank: pairs of passages, weighted by what their exchange would change in NDCG."""

from __future__ import annotations

import torch
from torch import Tensor


def lambdarank(score_QG: Tensor, gap_QG: Tensor) -> Tensor:
    """Return the LambdaRank loss of groups of one positive (member 0) and negatives, float32 [Q] (Burges 2010, "From
    RankNet to LambdaRank to LambdaMART"; as a loss: Wang et al. 2018, "The LambdaLoss framework").

        loss_q = sum_g |1 / log2(1 + rank_q0) - 1 / log2(1 + rank_qg)| log(1 + exp(score_qg - score_q0))

    Ranks in the group, from 1, are those of the scores as they are, and have no gradient. With one positive the ideal
    DCG is 1, so the weight is the change of NDCG. gap_QG: True where a group has no member; never member 0.
    """
    logits_QG = score_QG.float()
    order_QG = logits_QG.detach().masked_fill(gap_QG, -torch.inf).argsort(dim=1, descending=True, stable=True)
    gain_QG = 1 / torch.log2(order_QG.argsort(dim=1).float() + 2)
    weight_QG = (gain_QG[:, :1] - gain_QG).abs().masked_fill(gap_QG, 0.0)
    return (weight_QG * torch.nn.functional.softplus(logits_QG - logits_QG[:, :1])).sum(1)
