"""ZeRO-3 with workers that have different numbers of forward passes to run."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROWS = [[5], [4, 3, 2]]
"""Values of each worker, by pass."""


def model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3)))
    layers[0].requires_grad_(False)
    return layers


def passes(rank: int) -> list[torch.Tensor]:
    return [
        torch.randn(rows, 512, generator=torch.Generator().manual_seed(10 * rank + rows))
        for rows in ROWS[rank]
    ]


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    from ratchet.models import engine
    from ratchet.models.zero3_sync import Zero3Sync

    engine.silence_libraries()
    layers = model()
    zero3_sync = Zero3Sync(layers, "cpu", needed=True)
    rates = {"learning_rate": 1e-3, "weight_decay": 0.0, "max_grad_norm": 0.0}
    training = engine.start_engine(layers, **rates, zero_stage=3, device="cpu")
    assert layers[0].weight.numel() == 0, "nothing was cut up"

    ran = []

    def blank() -> torch.Tensor:
        ran.append(True)
        return layers(torch.zeros(1, 512))

    def loss() -> torch.Tensor:
        total = sum((layers(x) ** 2).mean(1).sum() for x in passes(rank))
        return (total + zero3_sync.finish(blank)) * 2 / sum(map(sum, ROWS))

    for _ in range(2):
        training.backward(loss())
        training.step()
    with torch.no_grad():
        outputs = torch.cat([layers(x) for x in passes(rank)])
        zero3_sync.finish(blank)
    assert len(ran) == (6 if rank == 0 else 0)
    with engine.gather_weights([weight for weight in layers.parameters() if weight.requires_grad]):
        if rank == 1:
            weights = {
                name: weight.detach().clone()
                for name, weight in layers.named_parameters()
                if weight.requires_grad
            }
            torch.save(
                (weights, training.get_global_grad_norm(), outputs), Path(folder) / "found.pt"
            )
    dist.destroy_process_group()


def test_workers_with_fewer_passes_keep_step(tmp_path: Path) -> None:
    mp.spawn(worker, (str(tmp_path),), nprocs=2)
    layers = model()
    optimizer = torch.optim.AdamW(
        [weight for weight in layers.parameters() if weight.requires_grad], 1e-3, weight_decay=0
    )
    x = torch.cat([*passes(0), *passes(1)])
    for _ in range(2):
        optimizer.zero_grad()
        (layers(x) ** 2).mean(1).mean().backward()
        norm = torch.nn.utils.get_total_norm(
            [w.grad for w in layers.parameters() if w.grad is not None]
        )
        optimizer.step()
    weights, found_norm, outputs = torch.load(tmp_path / "found.pt")
    assert set(weights) == {f"{layer}.{kind}" for layer in (1, 2) for kind in ("weight", "bias")}
    for name, value in weights.items():
        # By norm: Adam makes much of the rounding of a gradient that is nearly zero.
        expected, before = layers.get_parameter(name).detach(), model().get_parameter(name).detach()
        assert torch.linalg.norm(value - expected) < 2e-3 * torch.linalg.norm(expected - before)
    assert abs(found_norm - float(norm)) < 1e-4 * float(norm)
    torch.testing.assert_close(outputs, layers(torch.cat(passes(1))).detach(), rtol=1e-3, atol=1e-3)
