"""Distillation losses on a teacher's scores of groups: a query's positive and its negatives.

Legend: Q queries, G members of a group (the positive first), P passages of all groups.

Groups may hold fewer members than G: `mask_QG` is True where there is none. The loss is a sum over queries, so
`ratchet.models.losses.contrastive.scale_for_workers` makes it the same for any number of workers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ratchet.errors import ModelError
from ratchet.models.losses.contrastive import cross_entropy

KINDS = ("kl_div", "m3_kd_loss")
"""Names as in FlagEmbedding."""


def distillation_loss(
    distillation: str,
    score_QP: Tensor,
    member_QG: Tensor,
    teacher_QG: Tensor | None,
    *,
    mask_QP: Tensor | None = None,
    label_smoothing: float = 0.0,
    teacher_temperature: float = 1.0,
) -> Tensor:
    """Return the training loss, summed over queries, in float32: cross-entropy with the labels over all passages
    (`none`), plus `kl_div` with the teacher over the group (`kl_div`), or `m3_kd_loss` alone (`m3_kd_loss`).

    member_QG: int64, index of each member in P, the positive first; -1 where a group has fewer. Other arguments: see
    the functions below.
    """
    gap_QG = member_QG < 0
    total = score_QP.new_zeros(())
    if distillation != "m3_kd_loss":
        total = cross_entropy(score_QP, member_QG[:, 0], mask_QP=mask_QP, label_smoothing=label_smoothing).sum()
    if teacher_QG is None:
        return total
    options: dict[str, Any] = {
        "mask_QG": gap_QG if bool(gap_QG.any()) else None,
        "teacher_temperature": teacher_temperature,
    }
    if distillation == "kl_div":
        return total + kl_div(score_QP.gather(1, member_QG.clamp(min=0)), teacher_QG, **options).sum()
    return m3_kd_loss(score_QP, member_QG, teacher_QG, mask_QP=mask_QP, **options).sum()


def teacher_targets(teacher_QG: Tensor, mask_QG: Tensor | None = None, temperature: float = 1.0) -> Tensor:
    """Return the teacher's distribution over each group, float32: softmax(teacher / temperature). Raises ModelError for
    a score that is not finite and a temperature <= 0."""
    if not temperature > 0:
        raise ModelError(f"teacher_temperature: {temperature} given; expected more than 0; 1 leaves the scores alone")
    scores_QG = teacher_QG.float() / temperature
    if mask_QG is not None:
        scores_QG = scores_QG.masked_fill(mask_QG, -torch.inf)
    finite_Q = (torch.isfinite(scores_QG) if mask_QG is None else torch.isfinite(scores_QG) | mask_QG).all(1)
    if not bool(finite_Q.all()):
        row = int((~finite_Q).nonzero()[0])
        raise ModelError(
            f"teacher's scores of query {row} of the batch: not finite; expected numbers; score them again"
        )
    return torch.softmax(scores_QG, dim=1)


def kl_div(
    score_QG: Tensor, teacher_QG: Tensor, *, mask_QG: Tensor | None = None, teacher_temperature: float = 1.0
) -> Tensor:
    """Return the cross-entropy with the teacher's distribution over the group, float32 [Q]. It differs from the KL
    divergence by the teacher's entropy, which has no gradient (Hinton et al. 2015, "Distilling the knowledge in a
    neural network"):

        loss_q = - sum_g softmax(teacher_q / teacher_temperature)_g log softmax(score_q)_g

    The student's scores are used as given: divide them by its temperature before.
    """
    _check("kl_div", score_QG, teacher_QG, mask_QG)
    target_QG = teacher_targets(teacher_QG, mask_QG, teacher_temperature)
    logits_QG = score_QG.float()
    if mask_QG is not None:
        logits_QG = logits_QG.masked_fill(mask_QG, -torch.inf)
    log_QG = torch.log_softmax(logits_QG, dim=1)
    if mask_QG is not None:
        log_QG = log_QG.masked_fill(mask_QG, 0.0)  # 0 log 0 is 0
    return -(target_QG * log_QG).sum(1)


def m3_kd_loss(
    score_QP: Tensor,
    member_QG: Tensor,
    teacher_QG: Tensor,
    *,
    mask_QG: Tensor | None = None,
    mask_QP: Tensor | None = None,
    teacher_temperature: float = 1.0,
) -> Tensor:
    """Return the distillation loss of BGE-M3 (Chen et al. 2024) as in FlagEmbedding, float32 [Q]: for each member a
    cross-entropy against all passages except the members before it, weighted by the teacher's probability.

        loss_q = sum_g p_qg (log sum over passages that are not members 0 .. g-1 of exp(score_q) - score_q,member(g))

    score_QP: scores of each query with the passages of all groups, divided by the student's temperature. member_QG:
    int64, index of each member in P, distinct in a group. mask_QP: True where a passage is excluded, never a member.
    """
    _check("m3_kd_loss", member_QG, teacher_QG, mask_QG)
    if len(score_QP) != len(member_QG):
        raise ModelError(f"m3_kd_loss: {len(score_QP)} rows of scores for {len(member_QG)} groups; expected one each")
    there_QG = torch.ones_like(member_QG, dtype=torch.bool) if mask_QG is None else ~mask_QG
    place_QG = member_QG.where(there_QG, member_QG[:, :1])
    own_QG = score_QP.float().gather(1, place_QG)
    # One pass over [Q, P] for everything outside the group, then a cumulative sum over members: not G passes.
    left_out_QP = torch.zeros_like(score_QP, dtype=torch.bool).scatter(1, place_QG, True)
    if mask_QP is not None:
        left_out_QP = left_out_QP | mask_QP
    floor = torch.finfo(torch.float32).min / 4  # not -inf, whose gradient in logcumsumexp is NaN
    others_Q1 = torch.logsumexp(score_QP.float().masked_fill(left_out_QP, floor), dim=1, keepdim=True)
    after_QG = torch.logcumsumexp(own_QG.masked_fill(~there_QG, floor).flip(1), dim=1).flip(1)
    loss_QG = torch.logaddexp(after_QG, others_Q1) - own_QG
    target_QG = teacher_targets(teacher_QG, mask_QG, teacher_temperature)
    return (loss_QG * target_QG).where(there_QG, 0.0).sum(1)


def _check(name: str, first: Tensor, teacher_QG: Tensor, mask_QG: Tensor | None) -> None:
    if first.ndim != 2 or first.shape != teacher_QG.shape or (mask_QG is not None and mask_QG.shape != first.shape):
        raise ModelError(
            f"{name}: groups {tuple(first.shape)}, teacher {tuple(teacher_QG.shape)}"
            f"{'' if mask_QG is None else f', mask {tuple(mask_QG.shape)}'}; expected [Q, G] each, the positive first"
        )
    if mask_QG is not None and bool(mask_QG[:, 0].any()):
        raise ModelError(f"{name}: a group without a positive; expected member 0 in each; leave such queries out")
