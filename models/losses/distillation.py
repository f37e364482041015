"""Losses on groups (a query's positive and negatives): distillation of a teacher's scores.

Legend: Q queries, G members of a group (the positive first), P passages of all groups.

Groups may hold fewer members than G. Each has its positive, and finite scores of the teacher (`ratchet.data.triplets`);
below, teacher_QG is float32, divided by the teacher's temperature, and -inf where there is no member. The loss is a sum
over queries, so `ratchet.models.losses.contrastive.scale_for_workers` makes it the same for any number of workers.
"""

import torch
from torch import Tensor

from ratchet.models.losses.contrastive import cross_entropy


def distillation_loss(
    distillation: str,
    score_QP: Tensor,
    member_QG: Tensor,
    teacher_QG: Tensor | None,
    *,
    mask_QP: Tensor | None = None,
    label_smoothing: float = 0.0,
    teacher_temperature: float = 1.0,
    weight: float = 1.0,
) -> Tensor:
    """Return the training loss, summed over queries, in float32: the loss on the labels alone (`none`), or plus
    `weight` times `kl_div` or `margin_mse` over the group; or `m3_kd_loss` alone.

    member_QG: int64, index of each member in P, the positive first; -1 where a group has fewer. Other arguments: see
    the functions below.
    """
    gap_QG = member_QG < 0
    total = score_QP.new_zeros(())
    if distillation != "m3_kd_loss":
        total = cross_entropy(
            score_QP, member_QG[:, 0], mask_QP=mask_QP, label_smoothing=label_smoothing
        ).sum()
    if teacher_QG is None or distillation == "none":
        return total
    teacher_QG = (teacher_QG.float() / teacher_temperature).masked_fill(gap_QG, -torch.inf)
    if distillation == "m3_kd_loss":
        return m3_kd_loss(score_QP, member_QG, teacher_QG, mask_QP=mask_QP).sum()
    on_group = margin_mse
    if distillation == "kl_div":
        on_group = kl_div
    return total + weight * on_group(score_QP.gather(1, member_QG.clamp(min=0)), teacher_QG).sum()


def kl_div(score_QG: Tensor, teacher_QG: Tensor) -> Tensor:
    """Return the cross-entropy with the teacher's distribution over the group, float32 [Q]. It differs from the KL
    divergence by the teacher's entropy, which has no gradient (Hinton et al. 2015, "Distilling the knowledge in a
    neural network"):

        loss_q = - sum_g softmax(teacher_q)_g log softmax(score_q)_g

    The student's scores are used as given: the caller divides them by the student's temperature.
    """
    gap_QG = teacher_QG.isneginf()
    log_QG = torch.log_softmax(score_QG.float().masked_fill(gap_QG, -torch.inf), dim=1)
    log_QG = log_QG.masked_fill(gap_QG, 0.0)  # 0 log 0 is 0
    return -(torch.softmax(teacher_QG, dim=1) * log_QG).sum(1)


def margin_mse(score_QG: Tensor, teacher_QG: Tensor) -> Tensor:
    """Return the mean squared difference of margins between the positive and each negative, float32 [Q] (Hofstätter et
    al. 2020, "Improving efficient neural ranking models with cross-architecture knowledge distillation"):

        loss_q = mean_g (score_q0 - score_qg - (teacher_q0 - teacher_qg))^2
    """
    off_QG = score_QG.float() - teacher_QG
    there_QG = ~teacher_QG.isneginf()
    error_QG = (off_QG[:, :1] - off_QG.where(there_QG, off_QG[:, :1])) ** 2
    return error_QG.sum(1) / (there_QG.sum(1) - 1).clamp(min=1)


def m3_kd_loss(
    score_QP: Tensor, member_QG: Tensor, teacher_QG: Tensor, *, mask_QP: Tensor | None = None
) -> Tensor:
    """Return the distillation loss of BGE-M3 (Chen et al. 2024) as in FlagEmbedding, float32 [Q]: for each member a
    cross-entropy against all passages except the members before it, weighted by the teacher's probability.

        loss_q = sum_g p_qg (log sum over passages that are not members 0 .. g-1 of exp(score_q) - score_q,member(g))

    score_QP: scores of each query with the passages of all groups, divided by the student's temperature. member_QG:
    int64, index of each member in P, distinct in a group. mask_QP: True where a passage is excluded, never a member.
    """
    there_QG = ~teacher_QG.isneginf()
    place_QG = member_QG.where(there_QG, member_QG[:, :1])
    own_QG = score_QP.float().gather(1, place_QG)
    # One pass over [Q, P] for everything outside the group, then a cumulative sum over members: not G passes.
    left_out_QP = torch.zeros_like(score_QP, dtype=torch.bool).scatter(1, place_QG, True)
    if mask_QP is not None:
        left_out_QP = left_out_QP | mask_QP
    floor = torch.finfo(torch.float32).min / 4  # not -inf, whose gradient in logcumsumexp is NaN
    others_Q1 = torch.logsumexp(
        score_QP.float().masked_fill(left_out_QP, floor), dim=1, keepdim=True
    )
    after_QG = torch.logcumsumexp(own_QG.masked_fill(~there_QG, floor).flip(1), dim=1).flip(1)
    loss_QG = torch.logaddexp(after_QG, others_Q1) - own_QG
    return (loss_QG * torch.softmax(teacher_QG, dim=1)).where(there_QG, 0.0).sum(1)
