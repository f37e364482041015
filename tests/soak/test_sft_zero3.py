"""sft of all weights under ZeRO-3, with a teacher, and a worker that is killed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from sft_runs import CONFIG, SmallChunks, check_equal, context, make_inputs, train

from ratchet.jobs.answers import sft, sft_training, teacher_logprobs


@pytest.fixture(scope="module")
def inputs(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> sft.Inputs:
    return make_inputs(tmp_path_factory.mktemp("digits"))


def test_partitioned_weights_learn_and_resume(
    inputs: sft.Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = teacher_logprobs.Inputs(inputs.base, inputs.train, inputs.base)
    teacher_logprobs.JOB.run(
        context(tmp_path / "said"), teacher_logprobs.Config(top_k=5, dtype="float32"), given
    )
    inputs = dataclasses.replace(inputs, teacher=tmp_path / "said/out")
    config = dataclasses.replace(CONFIG, method="full", ce_weight=0.5)
    whole = train(tmp_path / "whole", config, inputs)
    monkeypatch.setattr(sft_training, "SftTask", SmallChunks)
    kill = tmp_path / "kill"
    kill.mkdir()
    monkeypatch.setattr(SmallChunks, "kill", kill)
    parts = train(tmp_path / "parts", dataclasses.replace(config, zero_stage=3), inputs, workers=2)
    assert not kill.exists()
    check_equal(parts, whole, "model/model.safetensors", tmp_path / "parts", tmp_path / "whole")
