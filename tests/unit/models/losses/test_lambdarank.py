"""The LambdaRank loss against the NDCG of scikit-learn, and its place in the training loss."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from ratchet.models.losses.distillation import distillation_loss, lambdarank


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(-20, 20), min_size=2, max_size=9, unique=True), st.integers(0, 3))
def test_each_negative_counts_by_what_an_exchange_changes(scores: list[int], gaps: int) -> None:
    """The scores are distinct, so that their order is one."""
    scaled = [score / 4 for score in scores]
    row = torch.tensor([[*scaled, *[99.0] * gaps]], requires_grad=True)
    gap = torch.tensor([[False] * len(scores) + [True] * gaps])
    found = lambdarank(row, gap)

    labels = [1, *[0] * (len(scores) - 1)]
    now = ndcg_score([labels], [scores])
    expected, slope = 0.0, [0.0] * (len(scores) + gaps)
    for g in range(1, len(scores)):
        exchanged = [*scores]
        exchanged[0], exchanged[g] = scores[g], scores[0]
        weight = abs(now - ndcg_score([labels], [exchanged]))
        expected += weight * math.log1p(math.exp(scaled[g] - scaled[0]))
        pull = weight / (1 + math.exp(scaled[0] - scaled[g]))
        slope[0], slope[g] = slope[0] - pull, pull
    assert found.item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
    (gradient,) = torch.autograd.grad(found.sum(), row)
    assert gradient[0].tolist() == pytest.approx(slope, rel=1e-4, abs=1e-5)


def test_it_takes_the_place_of_the_cross_entropy() -> None:
    torch.manual_seed(0)
    scores = torch.randn(3, 4)
    member = torch.tensor([[0, 1, 2, 3], [1, 0, -1, -1], [3, 2, 1, -1]])
    teacher = torch.randn(3, 4)
    own = scores.gather(1, member.clamp(min=0))
    alone = distillation_loss("none", scores, member, None, label_loss="lambdarank")
    assert alone.item() == pytest.approx(lambdarank(own, member < 0).sum().item())
    softmax, both = (
        distillation_loss("kl_div", scores, member, teacher, label_loss=loss)
        for loss in ("softmax", "lambdarank")
    )
    labels = distillation_loss("none", scores, member, None)
    assert (both - alone).item() == pytest.approx((softmax - labels).item(), rel=1e-5)
