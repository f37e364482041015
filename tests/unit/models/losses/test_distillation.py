"""Distillation losses against FlagEmbedding's formulas, written out, and against loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ratchet.models.losses.contrastive import cross_entropy, scale_for_workers
from ratchet.models.losses.distillation import distillation_loss, kl_div, m3_kd_loss, margin_mse

Q, G = 5, 4


@pytest.fixture
def groups() -> tuple[Tensor, Tensor, Tensor]:
    """(scores [Q, Q * G], members, teacher's scores); group q holds the passages q * G and on."""
    generator = torch.Generator().manual_seed(0)
    score_QP = (3 * torch.randn(Q, Q * G, generator=generator)).requires_grad_()
    member_QG = torch.arange(Q * G).view(Q, G)
    return score_QP, member_QG, 5 * torch.randn(Q, G, generator=generator)


def test_kl_div_is_the_formula(groups: tuple[Tensor, Tensor, Tensor]) -> None:
    score_QP, member_QG, teacher_QG = groups
    own_QG = score_QP.gather(1, member_QG)
    expected = -torch.mean(
        torch.sum(torch.log_softmax(own_QG, -1) * torch.softmax(teacher_QG / 2, -1), -1)
    )
    torch.testing.assert_close(kl_div(own_QG, teacher_QG / 2).mean(), expected)
    # As a divergence it is least where the student is the teacher.
    entropy = -(torch.softmax(teacher_QG, -1) * torch.log_softmax(teacher_QG, -1)).sum(-1).mean()
    torch.testing.assert_close(kl_div(teacher_QG, teacher_QG).mean(), entropy)
    assert kl_div(own_QG, teacher_QG).mean() > entropy


def test_margin_mse_is_that_of_sentence_transformers(groups: tuple[Tensor, Tensor, Tensor]) -> None:
    from sentence_transformers.losses import MarginMSELoss

    score_QP, member_QG, teacher_QG = groups
    own_QG = score_QP.gather(1, member_QG)
    theirs = MarginMSELoss.__new__(MarginMSELoss)
    torch.nn.Module.__init__(theirs)
    theirs.loss_fct = torch.nn.MSELoss()
    theirs.similarity_fct = lambda one, other: (one * other).sum(-1)
    unit = torch.ones(Q, 1)
    passages = [own_QG[:, [g]] for g in range(G)]
    expected = theirs.compute_loss_from_embeddings(
        [unit, *passages], (teacher_QG[:, :1] - teacher_QG[:, 1:]) / 2
    )
    torch.testing.assert_close(margin_mse(own_QG, teacher_QG / 2).mean(), expected)


def test_the_weight_scales_the_teachers_part(groups: tuple[Tensor, Tensor, Tensor]) -> None:
    labels, one, four = (
        distillation_loss(kind, *groups, weight=weight)
        for kind, weight in (("none", 1.0), ("margin_mse", 1.0), ("margin_mse", 4.0))
    )
    torch.testing.assert_close(four - labels, 4 * (one - labels))
    torch.testing.assert_close(
        one - labels, margin_mse(groups[0].gather(1, groups[1]), groups[2]).sum()
    )


def by_masks(score_QP: Tensor, teacher_QG: Tensor) -> Tensor:
    """FlagEmbedding's way: one cross-entropy per member, each member then masked."""
    targets_QG, labels = torch.softmax(teacher_QG, -1), torch.arange(Q) * G
    total, mask_QP = score_QP.new_zeros(()), torch.zeros_like(score_QP)
    for i in range(G):
        loss_Q = functional.cross_entropy(score_QP + mask_QP, labels + i, reduction="none")
        total = total + torch.mean(targets_QG[:, i] * loss_Q)
        mask_QP = torch.scatter(mask_QP, -1, (labels + i)[:, None], torch.finfo(torch.float32).min)
    return total


def test_m3_kd_loss_by_definition(groups: tuple[Tensor, Tensor, Tensor]) -> None:
    score_QP, member_QG, teacher_QG = groups
    ours, theirs = (
        m3_kd_loss(score_QP, member_QG, teacher_QG).mean(),
        by_masks(score_QP, teacher_QG),
    )
    torch.testing.assert_close(ours, theirs)
    (own,) = torch.autograd.grad(ours, score_QP)
    (other,) = torch.autograd.grad(theirs, score_QP)
    torch.testing.assert_close(own, other, atol=1e-6, rtol=1e-5)


def test_groups_of_fewer_members_are_those_groups(groups: tuple[Tensor, Tensor, Tensor]) -> None:
    score_QP, member_QG, teacher_QG = groups
    mask_QG = torch.zeros(Q, G, dtype=torch.bool)
    mask_QG[1, 2:] = mask_QG[3, 1:] = True
    given = teacher_QG.masked_fill(mask_QG, -torch.inf)
    soft = kl_div(score_QP.gather(1, member_QG), given)
    hard = m3_kd_loss(score_QP, member_QG, given)
    margins = margin_mse(score_QP.gather(1, member_QG), given)
    for q in range(Q):
        there = ~mask_QG[q]
        own, teacher = member_QG[q, there][None], teacher_QG[q, there][None]
        torch.testing.assert_close(
            margins[q], margin_mse(score_QP[q : q + 1].gather(1, own), teacher)[0]
        )
        torch.testing.assert_close(soft[q], kl_div(score_QP[q : q + 1].gather(1, own), teacher)[0])
        torch.testing.assert_close(hard[q], m3_kd_loss(score_QP[q : q + 1], own, teacher)[0])
    (gradient,) = torch.autograd.grad(soft.sum() + hard.sum() + margins.sum(), score_QP)
    assert bool(torch.isfinite(gradient).all())

    members, wrong = (
        member_QG.masked_fill(mask_QG, -1),
        2 * teacher_QG.masked_fill(mask_QG, torch.nan),
    )
    one = distillation_loss("m3_kd_loss", score_QP, members, wrong, teacher_temperature=2.0)
    torch.testing.assert_close(one, hard.sum())
    two = distillation_loss("kl_div", score_QP, members, wrong, teacher_temperature=2.0)
    torch.testing.assert_close(two, soft.sum() + cross_entropy(score_QP, members[:, 0]).sum())


def test_a_passage_that_does_not_take_part_changes_nothing(
    groups: tuple[Tensor, Tensor, Tensor],
) -> None:
    score_QP, member_QG, teacher_QG = groups
    mask_QP = torch.zeros_like(score_QP, dtype=torch.bool)
    mask_QP[0, 7] = mask_QP[2, 0] = True
    changed = score_QP.detach().clone()
    changed[0, 7], changed[2, 0] = 1e4, -1e4
    one, other = (
        m3_kd_loss(s, member_QG, teacher_QG, mask_QP=mask_QP) for s in (score_QP, changed)
    )
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_gradient_does_not_depend_on_the_workers(
    groups: tuple[Tensor, Tensor, Tensor], workers: int
) -> None:
    score_QP, member_QG, teacher_QG = groups

    def loss(rows: Tensor) -> Tensor:
        scores, members, teacher = score_QP[rows], member_QG[rows], teacher_QG[rows]
        hard_Q = cross_entropy(scores, members[:, 0], label_smoothing=0.2)
        soft_Q = kl_div(scores.gather(1, members), teacher) + m3_kd_loss(scores, members, teacher)
        return (soft_Q + hard_Q).sum()

    (expected,) = torch.autograd.grad(loss(torch.arange(Q)) / Q, score_QP)
    parts = torch.arange(Q).tensor_split(workers)  # uneven
    shares = [
        torch.autograd.grad(scale_for_workers(loss(rows), Q, workers), score_QP)[0]
        for rows in parts
    ]
    torch.testing.assert_close(torch.stack(shares).mean(0), expected)


def test_a_group_alone_is_a_cross_entropy(groups: tuple[Tensor, Tensor, Tensor]) -> None:
    score_QP, member_QG, _ = groups
    own_QG, first_Q = score_QP.gather(1, member_QG), torch.zeros(Q, dtype=torch.long)
    expected = functional.cross_entropy(own_QG, first_Q, label_smoothing=0.2)
    torch.testing.assert_close(cross_entropy(own_QG, first_Q, label_smoothing=0.2).mean(), expected)
    certain = torch.full((Q, G), -1e4)
    certain[:, 0] = 1e4
    torch.testing.assert_close(
        m3_kd_loss(score_QP, member_QG, certain).mean(),
        functional.cross_entropy(score_QP, member_QG[:, 0]),
    )
