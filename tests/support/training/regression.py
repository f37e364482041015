"""A regression in four training steps per epoch, by the training loop and by plain torch."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.errors import InputError
from ratchet.jobs.training.config import FinetuneConfig
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.schedule import TrainHistory, learning_rate_at
from ratchet.jobs.training.task import Batch
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.orchestrator.job_interface import Context, Resources

OPTIONS = FinetuneConfig(
    epochs=2,
    learning_rate=0.05,
    lr_scheduler_type="cosine",
    warmup_ratio=0.2,
    weight_decay=0.1,
    max_grad_norm=0.5,
    zero_stage=1,
    offload="none",
    seed=7,
    metric="goodness",
)

STEPS = 4


def rows(epoch: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(100 * epoch + step)
    x = torch.randn(8, 5, generator=random)
    return x, x @ torch.arange(15.0).reshape(5, 3) / 10


def fresh() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


class Regression:
    """The rows of a batch are split over the workers; the loss of a batch is the mean over its 8 rows."""

    def __init__(
        self, worker: WorkerInfo, config: FinetuneConfig, fail: str = "", cut: int = 1
    ) -> None:
        self.worker, self.fail, self.cut, self.steps, self.model = (
            worker,
            fail,
            cut,
            [STEPS] * 9,
            fresh(),
        )
        self.counts: dict[str, int] = {}
        self.tables: dict[str, Any] = {}

    def evaluate_start(self) -> Evaluation:
        if self.fail == "input":
            raise InputError("rows: none given; expected some; give some")
        return Evaluation({"goodness": 0.0})

    def batch(self, epoch: int, step: int) -> Batch:
        return Batch(
            [(epoch, step, part) for part in range(self.cut)], 24 // self.worker.world_size
        )

    def loss(self, microbatch: tuple[int, int, int]) -> torch.Tensor:
        epoch, step, part = microbatch
        x, y = (
            side[self.worker.rank :: self.worker.world_size][part :: self.cut]
            for side in rows(epoch, step)
        )
        if self.fail.startswith("/") and epoch == 1 and not Path(self.fail).exists():
            Path(self.fail).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        loss = ((self.model(x) - y) ** 2).sum() * self.worker.world_size / 24
        return loss * float("nan") if self.fail == "nan" and step == 2 else loss

    def evaluate(self) -> Evaluation:
        with torch.no_grad():
            x, y = rows(9, 9)
            return Evaluation({"goodness": -float(((self.model(x) - y) ** 2).mean())})

    def save(self, folder: Path) -> None:
        torch.save(self.model.state_dict(), folder / "weights.pt")


def context(folder: Path, workers: int) -> Context:
    (folder / "out").mkdir(parents=True)
    (folder / "work").mkdir()
    return Context(
        "train",
        "ab" * 32,
        1,
        folder / "out",
        folder / "work",
        Resources(workers, cpus=2 / workers, gpus=0.0, retries=1),
        logs=folder / "logs",
    )


def by_hand() -> tuple[list[float], list[float], dict[str, Any]]:
    """Train with plain torch; return (losses, gradient norms before clipping, final weights)."""
    model = fresh()
    weights = {0.1: [model[0].weight, model[2].weight], 0.0: [model[0].bias, model[2].bias]}
    groups: list[dict[str, Any]] = [
        {"params": own, "weight_decay": decay} for decay, own in weights.items()
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0)
    losses, norms = [], []
    for epoch in range(2):
        for step in range(STEPS):
            x, y = rows(epoch, step)
            loss = ((model(x) - y) ** 2).mean()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(epoch * STEPS + step, 2 * STEPS, OPTIONS)
            optimizer.zero_grad()
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses, norms, model.state_dict()


def check_equal(history: TrainHistory, best: Path) -> None:
    losses, norms, weights = by_hand()
    assert history.loss == pytest.approx(losses, rel=2e-5)
    assert history.gradient_norm == pytest.approx(norms, rel=2e-4)
    assert history.best == 1
    for name, value in torch.load(best / "weights.pt").items():
        torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-5)
