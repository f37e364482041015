"""The tiled contrastive loss and gradient caching against the plain loss: workers, chunks, micro batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from contrastive_oracle import symmetric_info_nce
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from worker_processes import run_workers

from ratchet.models.losses import grad_cache, tiled_contrastive_loss
from ratchet.models.losses.tiled_contrastive_loss import symmetric_info_nce_gradient

SIZES = {1: [13], 2: [7, 6], 4: [5, 1, 4, 3]}
PAIRS, TEMPERATURE = 13, 0.07


def sides(pairs: int, seed: int = 0, dim: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(pairs, dim, generator=generator) for _ in range(2))
    return torch.nn.functional.normalize(left), torch.nn.functional.normalize(left + right)


def same_group(group: Tensor) -> Tensor:
    return (group[:, None] == group) & ~torch.eye(len(group), dtype=torch.bool)


def naive(
    left: Tensor, right: Tensor, temperature: float, group: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    left, right = (side.clone().requires_grad_() for side in (left, right))
    mask = None if group is None else same_group(group)
    loss = symmetric_info_nce(left, right, temperature=temperature, mask_NN=mask)
    return loss.detach(), *torch.autograd.grad(loss, (left, right))


def near(found: Tensor, expected: Tensor) -> bool:
    return bool(torch.linalg.norm(found - expected) <= 2e-6 * torch.linalg.norm(expected) + 1e-9)


@pytest.mark.slow
@given(
    pairs=st.integers(1, 40),
    chunk=st.integers(1, 50),
    keys=st.integers(1, 50),
    temperature=st.sampled_from([0.01, 0.07, 1.0]),
    groups=st.sampled_from([0, 3, 100]),
    seed=st.integers(0, 9999),
)
@settings(deadline=None, max_examples=80)
def test_streamed_is_naive(
    pairs: int, chunk: int, keys: int, temperature: float, groups: int, seed: int
) -> None:
    left, right = sides(pairs, seed)
    group = (
        torch.randint(0, groups, (pairs,), generator=torch.Generator().manual_seed(seed))
        if groups
        else None
    )
    before, tiled_contrastive_loss.KEYS = tiled_contrastive_loss.KEYS, keys
    try:
        found = symmetric_info_nce_gradient(
            left, right, temperature=temperature, group_N=group, chunk=chunk
        )
    finally:
        tiled_contrastive_loss.KEYS = before
    expected = naive(left, right, temperature, group)
    # At 0.01 the exponents are up to 200: float32 keeps 1e-5 of their difference.
    assert found[0].item() == pytest.approx(
        expected[0].item(), rel=1e-5, abs=1e-5 + 4e-7 / temperature
    )
    for one, other in zip(found[1:], expected[1:], strict=True):
        # A similarity is 1 / temperature, rounded to 24 bits; its exponential is divided by the temperature again.
        torch.testing.assert_close(
            one, other, rtol=1e-4, atol=2e-6 / temperature + 2e-7 / temperature**2
        )


class Net(torch.nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, 16),
            torch.nn.GELU(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(16, 6),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(self.layers(x), dim=1)


def test_a_batch_of_one_group_has_nothing_to_learn() -> None:
    left, right = torch.nn.functional.normalize(torch.randn(2, 7, 5, dtype=torch.float64), dim=-1)
    group = torch.zeros(7, dtype=torch.int64)
    loss, *both = symmetric_info_nce_gradient(left, right, temperature=0.1, group_N=group, chunk=3)
    assert float(loss) == pytest.approx(0, abs=1e-6)
    assert all(bool((gradient.abs() < 1e-6).all()) for gradient in both)


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    left, right = (torch.randn(PAIRS, 5, generator=generator) for _ in range(2))
    return left, right, torch.arange(PAIRS) // 3


def cached(
    net: Net, own: slice, micro_batch_size: int, chunk: int, workers: int
) -> tuple[Tensor, list[Tensor]]:
    """(loss, gradients) of this worker's pairs: left rows, then right rows, in batches that mix the two."""
    left, right, group = (part[own] for part in inputs())
    rows, pairs = torch.cat([left, right]), len(left)
    mixed = np.random.default_rng(1).permutation(2 * pairs)
    batches = [
        mixed[start : start + micro_batch_size] for start in range(0, 2 * pairs, micro_batch_size)
    ]

    def gradient(vector_RD: Tensor) -> tuple[Tensor, Tensor]:
        two = vector_RD.split(pairs)
        loss, *both = symmetric_info_nce_gradient(
            *two, temperature=TEMPERATURE, group_N=group, chunk=chunk
        )
        return loss, torch.cat(both)

    total = torch.zeros(())

    def embed(batch: np.ndarray) -> Tensor:
        return net(rows[torch.from_numpy(batch)])

    for part in grad_cache.cache_gradients(embed, batches, gradient, workers):
        share = grad_cache.compute_surrogate_loss(embed, part)
        share.backward()
        total += share.detach()
    return total, [weight.grad for weight in net.parameters() if weight.grad is not None]


def worker(rank: int, workers: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=workers
    )
    sizes = SIZES[workers]
    start = sum(sizes[:rank])
    found = []
    for micro_batch_size, chunk in ((1, 100), (4, 3), (100, 5)):
        loss, gradients = cached(
            Net(), slice(start, start + sizes[rank]), micro_batch_size, chunk, workers
        )
        for value in (loss, *gradients):
            dist.all_reduce(value)
            value /= workers  # as DeepSpeed does
        found.append((loss, gradients))
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_cached_gradients_are_the_full_batch_ones(workers: int, tmp_path: Path) -> None:
    run_workers(worker, (workers, str(tmp_path)), workers)
    net = Net()
    left, right, group = inputs()
    mask = same_group(group)
    loss = symmetric_info_nce(net(left), net(right), temperature=TEMPERATURE, mask_NN=mask)
    expected = torch.autograd.grad(loss, list(net.parameters()))
    for found, gradients in torch.load(tmp_path / "found.pt"):
        assert found.item() == pytest.approx(loss.item(), rel=1e-6)
        for one, other in zip(gradients, expected, strict=True):
            assert near(one, other)


def test_both_passes_have_one_dropout() -> None:
    net = Net(dropout=0.5)
    x = torch.ones(4, 5)
    seen: list[list[Tensor]] = []

    def embed(batch: np.ndarray) -> Tensor:
        rows = torch.from_numpy(batch)
        vectors = net(x[rows])
        seen[-1].append(vectors.detach())
        return vectors

    batches = [np.array([0, 1]), np.array([2, 3])]
    for number in range(2):
        seen.append([])
        torch.manual_seed(number)
        parts = grad_cache.cache_gradients(embed, batches, lambda v: (v.sum(), torch.ones_like(v)))
        for part in parts:
            grad_cache.compute_surrogate_loss(embed, part).backward()
    for step in seen:
        assert torch.equal(step[0], step[2])
        assert torch.equal(step[1], step[3])
        assert not torch.equal(step[0], step[1])
    assert not torch.equal(seen[0][0], seen[1][0])
