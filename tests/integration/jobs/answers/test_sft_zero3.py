"""sft under ZeRO-3: two workers give the same results as one worker with the whole model, although their numbers of
passes, chunks and generated tokens differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from sft_runs import CONFIG, SmallChunks, check_equal, make_inputs, train

from ratchet.jobs.answers import sft, sft_training


@pytest.fixture(scope="module")
def inputs(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> sft.Inputs:
    return make_inputs(tmp_path_factory.mktemp("digits"))


@pytest.mark.soak
def test_adapters_equal_those_of_whole_models(
    inputs: sft.Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(tmp_path / "first", CONFIG, inputs)
    inputs = dataclasses.replace(inputs, current_best=tmp_path / "first/out/adapter")
    config = dataclasses.replace(CONFIG, seed=5)
    whole = train(tmp_path / "whole", config, inputs)
    assert whole.tables["epochs"][0]["valid/eval_loss"] == first.metrics["valid/eval_loss"]
    monkeypatch.setattr(sft_training, "SftTask", SmallChunks)
    config = dataclasses.replace(config, zero_stage=3, offload="parameters")
    parts = train(tmp_path / "parts", config, inputs, workers=2)
    check_equal(
        parts, whole, "adapter/adapter_model.safetensors", tmp_path / "parts", tmp_path / "whole"
    )
