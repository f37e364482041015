"""Replicas of `ratchet serve` on the machines of a cluster, and requests whose clients are gone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
import torch

from ratchet.jobs.serving.application import EmbeddingRequest, ModelServer
from ratchet.jobs.serving.server import count_threads


@pytest.mark.parametrize(
    ("cpus", "replicas", "threads"),
    [([8], 1, 8), ([8], 3, 2), ([8, 8], 1, 8), ([8, 8], 3, 4), ([0, 4, 2], 2, 2), ([2, 2], 4, 1), ([1], 2, 1)],
)
def test_a_replica_fits_on_one_machine(cpus: list[int], replicas: int, threads: int) -> None:
    """Where all CPUs of the cluster were divided, a replica of two machines waited for room that there never was."""
    assert count_threads(cpus, replicas) == threads


class Busy:
    """An embedder that waits until it is released, and counts the threads in it."""

    dim = 2

    def __init__(self) -> None:
        self.entered, self.released = threading.Semaphore(0), threading.Semaphore(0)
        self.inside = self.most = 0
        self.seen: list[str] = []

    def encode(self, texts: list[str], role: str, progress: Any) -> np.ndarray:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.seen += texts
        self.entered.release()
        assert self.released.acquire(timeout=30)
        self.inside -= 1
        return np.ones((len(texts), self.dim), np.float32)


def test_a_model_ends_the_request_of_a_client_that_is_gone_before_the_next_one() -> None:
    own: Any = ModelServer.__bases__[0]  # without what Ray Serve adds
    model, server = Busy(), own({}, "a-token", torch.get_num_threads())
    server.embedders["model"] = model

    async def ask(text: str) -> dict[str, Any]:
        return await server.embed(EmbeddingRequest(model="model", input=text), "Bearer a-token")

    async def leave() -> dict[str, Any]:
        gone, waits, follows = (asyncio.create_task(ask(text)) for text in ("gone", "gone too", "follows"))
        assert await asyncio.to_thread(model.entered.acquire, timeout=30)
        gone.cancel()
        waits.cancel()
        assert not await asyncio.to_thread(model.entered.acquire, timeout=0.5), "a second thread is in the model"
        model.released.release()
        model.released.release()
        return await asyncio.wait_for(follows, 30)

    assert asyncio.run(leave())["data"][0]["embedding"] == [1.0, 1.0]
    assert model.seen == ["gone", "follows"]
    assert model.most == 1
