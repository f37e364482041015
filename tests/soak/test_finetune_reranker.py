"""The reranker's finetuning of a decoder in 4 bits, and under ZeRO-3."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from reranker_finetuning import DECODER, context, losses, make_inputs
from step_process import run_step

from ratchet.jobs.retrieval import finetune_reranker
from ratchet.jobs.retrieval.finetune_reranker import Inputs, check
from ratchet.orchestrator.job_interface import Result


@pytest.fixture(scope="module")
def inputs(concepts: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(concepts, tmp_path_factory.mktemp("reranker"))


@pytest.fixture(scope="module")
def decoder(
    local_ray: None, inputs: Inputs, tiny_decoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    """Yes or No, on two workers."""
    folder, given = (
        tmp_path_factory.mktemp("yes-no"),
        dataclasses.replace(inputs, base=tiny_decoder),
    )
    check(DECODER, given, {})
    return run_step(
        finetune_reranker.run, context(folder, workers=2), DECODER, given
    ), folder / "out/adapter"


def test_a_decoder_learns_nearly_the_same_in_4_bits(
    decoder: tuple[Result, Path], inputs: Inputs, tiny_decoder: Path, tmp_path: Path
) -> None:
    """4-bit weights change the losses, by less than a fifth."""
    config, given = (
        dataclasses.replace(DECODER, quantization="nf4"),
        dataclasses.replace(inputs, base=tiny_decoder),
    )
    check(config, given, {})
    result = run_step(finetune_reranker.run, context(tmp_path, workers=2), config, given)
    assert losses(result) == pytest.approx(losses(decoder[0]), rel=0.2)
    assert np.mean(losses(result)[-3:]) < np.mean(losses(result)[:3]) - 0.02


def test_a_decoder_learns_the_same_with_zero_3(
    decoder: tuple[Result, Path], inputs: Inputs, tiny_decoder: Path, tmp_path: Path
) -> None:
    """Batches of many lengths: the workers run different numbers of forward passes."""
    config, given = (
        dataclasses.replace(DECODER, zero_stage=3),
        dataclasses.replace(inputs, base=tiny_decoder),
    )
    check(config, given, {})
    result = run_step(finetune_reranker.run, context(tmp_path, workers=2), config, given)
    assert losses(result) == pytest.approx(losses(decoder[0]), rel=0.02)
    assert np.mean(losses(result)[-3:]) < np.mean(losses(result)[:3]) - 0.02
