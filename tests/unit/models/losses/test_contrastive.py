"""Losses against explicit loops, and gathered gradients against one process, with real processes over gloo."""

from __future__ import annotations

import math
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_processes import run_workers

from ratchet.models.losses import contrastive as losses

SIZES = {1: [8], 2: [5, 3], 4: [1, 4, 2, 1]}  # queries per worker: 8 in all, uneven on purpose
NEGATIVES = 2
TAU = 0.05


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    queries, passages = 8, 8 * (1 + NEGATIVES)
    return {
        "query": torch.randn(queries, 6, generator=generator),
        "passage": torch.randn(passages, 6, generator=generator),
        "text": torch.arange(passages) % 20,  # some passages are the same text
        "weight": torch.randn(6, 5, generator=generator),
    }


def embed(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.tanh(rows @ weight), dim=1)


def info_nce(
    query: torch.Tensor,
    passage: torch.Tensor,
    positive: torch.Tensor,
    *,
    temperature: float,
    **options: Any,
) -> torch.Tensor:
    return losses.cross_entropy(query @ passage.T / temperature, positive, **options).mean()


def share(weight: torch.Tensor, start: int, stop: int, total: int, workers: int) -> torch.Tensor:
    """This worker's loss: queries [start, stop) of the batch, with their passages."""
    data = batch()
    query = embed(weight, data["query"][start:stop])
    width = 1 + NEGATIVES
    own, offsets = slice(start * width, stop * width), losses.row_offsets((stop - start) * width)
    passage = losses.gather_with_gradient(embed(weight, data["passage"][own]), offsets=offsets)
    text = losses.gather_with_gradient(data["text"][own], offsets=offsets)
    positive = torch.arange(start, stop) * width
    mask = losses.false_negative_mask(text.numpy(), positive.numpy(), [()] * len(positive))
    loss = losses.cross_entropy(
        query @ passage.T / TAU, positive, mask_QP=mask, label_smoothing=0.1
    )
    return losses.scale_for_workers(loss.sum(), total, workers)


def worker(rank: int, world: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )
    sizes = SIZES[world]
    start = sum(sizes[:rank])
    weight = batch()["weight"].requires_grad_()
    loss = share(weight, start, start + sizes[rank], sum(sizes), world)
    loss.backward()
    assert weight.grad is not None
    value, gradient = loss.detach().clone(), weight.grad.clone()
    dist.all_reduce(value)
    dist.all_reduce(gradient)
    if rank == 0:
        torch.save((value / world, gradient / world), Path(folder) / "found.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
def test_averaged_gradient_is_the_full_batch_one(world: int, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_workers(worker, (world, port, str(tmp_path)), world)
    weight = batch()["weight"].requires_grad_()
    loss = share(weight, 0, 8, 8, 1)
    (expected,) = torch.autograd.grad(loss, weight)
    value, gradient = torch.load(tmp_path / "found.pt")
    assert torch.linalg.norm(gradient - expected) <= 1e-6 * torch.linalg.norm(expected)
    assert value.item() == pytest.approx(loss.item(), rel=1e-6)


@given(seed=st.integers(0, 10**6), smoothing=st.sampled_from([0.0, 0.2]), masked=st.booleans())
@settings(max_examples=40, deadline=None)
def test_info_nce_is_its_formula(seed: int, smoothing: float, masked: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, passage = torch.randn(3, 4, generator=generator), torch.randn(7, 4, generator=generator)
    positive = torch.randint(0, 7, (3,), generator=generator)
    mask = torch.rand(3, 7, generator=generator) < 0.4
    mask[torch.arange(3), positive] = False
    if not masked:
        mask[:] = False
    got = info_nce(
        query,
        passage,
        positive,
        temperature=0.3,
        mask_QP=mask if masked else None,
        label_smoothing=smoothing,
    )
    total = 0.0
    for q in range(3):
        logits = {
            p: sum(a * b for a, b in zip(query[q].tolist(), passage[p].tolist(), strict=True)) / 0.3
            for p in range(7)
            if not mask[q, p]
        }
        normaliser = math.log(sum(math.exp(value) for value in logits.values()))
        target = {
            p: smoothing / len(logits) + (1 - smoothing) * (p == int(positive[q])) for p in logits
        }
        total += sum(target[p] * (normaliser - value) for p, value in logits.items()) / 3
    assert got.item() == pytest.approx(total, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_right(masked: bool) -> None:
    """In float32, against finite differences of the formula in float64, with step 1e-6."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    passage = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    positive = torch.tensor([0, 2, 4])
    mask = torch.zeros(3, 6, dtype=torch.bool)
    if masked:
        mask[0, 1] = mask[2, 5] = True

    def reference(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        logits = (q @ p.T / 0.2).masked_fill(mask, -torch.inf)
        return torch.nn.functional.cross_entropy(logits, positive)

    a, b = query.float().requires_grad_(), passage.float().requires_grad_()
    info_nce(a, b, positive, temperature=0.2, mask_QP=mask if masked else None).backward()
    step = 1e-6
    for grad, which in ((a.grad, 0), (b.grad, 1)):
        assert grad is not None
        for i in range(grad.shape[0]):
            for j in range(grad.shape[1]):
                sides = []
                for sign in (1, -1):
                    moved = [query.clone(), passage.clone()]
                    moved[which][i, j] += sign * step
                    sides.append(reference(*moved).item())
                assert grad[i, j].item() == pytest.approx(
                    (sides[0] - sides[1]) / (2 * step), rel=1e-4, abs=1e-5
                )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_false_negatives_are_those_a_person_would_list(data: st.DataObject) -> None:
    passages = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=10))
    positives = data.draw(st.lists(st.integers(0, len(passages) - 1), min_size=1, max_size=5))
    known = [data.draw(st.lists(st.integers(0, 8), max_size=3)) for _ in positives]
    got = losses.false_negative_mask(np.array(passages), np.array(positives), known)
    for q, positive in enumerate(positives):
        same = {passages[positive], *known[q]}
        assert got[q].tolist() == [
            text in same and p != positive for p, text in enumerate(passages)
        ]


def test_masked_passages_change_nothing() -> None:
    generator = torch.Generator().manual_seed(3)
    query, passage = torch.randn(2, 4, generator=generator), torch.randn(5, 4, generator=generator)
    positive = torch.tensor([0, 1])
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[:, 4] = True
    passage.requires_grad_()
    masked = info_nce(query, passage, positive, temperature=0.1, mask_QP=mask, label_smoothing=0.1)
    masked.backward()
    without = info_nce(query, passage[:4], positive, temperature=0.1, label_smoothing=0.1)
    assert masked.item() == pytest.approx(without.item(), rel=1e-6)
    assert passage.grad is not None
    assert torch.equal(passage.grad[4], torch.zeros(4))


def test_one_process_gathers_itself() -> None:
    rows = torch.ones(3, 2, requires_grad=True)
    assert losses.gather_with_gradient(rows, offsets=[0, 3]) is rows
    assert losses.row_offsets(3) == [0, 3]
