"""Base models loaded in parts under ZeRO-3: no worker holds all weights, and the result is the same."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from embedder_finetuning import FAST, context, losses

from ratchet.errors import InputError
from ratchet.jobs.retrieval import finetune_embedder
from ratchet.jobs.retrieval.finetune_embedder import Inputs, run

CONFIG = replace(FAST, epochs=1, batch_size=20, max_length=64, learning_rate=1e-3)


def load(rank: int, base: str, folder: str, kind: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    from ratchet.models import engine
    from ratchet.models.embedder import encoder

    engine.silence_libraries()
    whole = encoder.load(Path(base), dtype=kind, device="cpu", training=True).model
    with engine.load_partitioned(kind, "cpu", zero_stage=3):
        found = encoder.load(Path(base), dtype=kind, device="cpu", training=True).model
    weights = dict(found.named_parameters())
    assert all(engine.is_partitioned(weight) and weight.numel() == 0 for weight in weights.values())
    own = sum(weight.ds_tensor.numel() for weight in weights.values())  # type: ignore[attr-defined]
    every = sum(weight.numel() for weight in whole.parameters())
    assert own <= 0.51 * every + 2 * len(weights)
    with engine.gather_weights(list(weights.values())):
        for name, weight in whole.named_parameters():
            assert weights[name].dtype == weight.dtype == getattr(torch, kind)
            assert torch.equal(weights[name], weight)
    for name, buffer in whole.named_buffers():
        assert torch.equal(found.get_buffer(name), buffer)
    dist.destroy_process_group()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_each_worker_holds_its_part_of_the_weights(
    tiny_decoder: Path, tmp_path: Path, kind: str
) -> None:
    mp.spawn(load, (str(tiny_decoder), str(tmp_path), kind), nprocs=2)


@pytest.mark.soak
def test_partitioned_training_equals_whole(
    local_ray: None, concepts: Path, tiny_decoder: Path, tmp_path: Path
) -> None:
    inputs = Inputs(tiny_decoder, concepts / "mined", concepts / "corpus", concepts / "valid")
    first = run(context(tmp_path / "first"), CONFIG, inputs)
    inputs = replace(inputs, current_best=tmp_path / "first/out/adapter")
    whole = run(context(tmp_path / "whole"), replace(CONFIG, seed=5), inputs)
    config = replace(CONFIG, seed=5, zero_stage=3, offload="parameters")
    parts = run(context(tmp_path / "parts", workers=2), config, inputs)
    assert losses(parts) == pytest.approx(losses(whole), rel=1e-4)
    start, expected = (result.tables["epochs"][0] for result in (parts, whole))
    assert start == expected
    assert start["valid/map@25"] == first.metrics["valid/map@25"]
    assert parts.tables["epochs"][1]["valid/map@25"] == pytest.approx(
        whole.tables["epochs"][1]["valid/map@25"], abs=0.02
    )


@pytest.mark.parametrize(
    ("offload", "stage", "needed"), [("optimizer", 0, 1), ("parameters", 2, 3)]
)
def test_only_what_is_sharded_can_be_offloaded(offload: str, stage: int, needed: int) -> None:
    config = replace(CONFIG, offload=offload, zero_stage=stage)
    nothing = Inputs(None, None, None, None)  # type: ignore[arg-type]
    with pytest.raises(
        InputError,
        match=f"zero_stage: {stage} given; expected {needed} or more with offload={offload}",
    ):
        finetune_embedder.check(config, nothing, {})
