"""Finetuning of embedders: killed drivers and workers, ZeRO-3, a decoder in 4 bits."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from embedder_finetuning import LONG, Lines, context, losses, train_with_a_killed_worker
from safetensors.torch import load_file
from step_process import run_step

from ratchet.jobs.retrieval import finetune_embedder
from ratchet.jobs.retrieval.finetune_embedder import Config, Inputs, check
from ratchet.orchestrator.job_interface import Result

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def inputs(concepts: Path) -> Inputs:
    return Inputs(concepts / "base", concepts / "mined", concepts / "corpus", concepts / "valid")


@pytest.fixture(scope="module")
def undisturbed(
    local_ray: None, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory
) -> Result:
    return run_step(finetune_embedder.run, context(tmp_path_factory.mktemp("long")), LONG, inputs)


def test_killed_zero_3_worker_resumes(undisturbed: Result, inputs: Inputs, tmp_path: Path) -> None:
    """ZeRO-3 adds gradients up in another order."""
    result = train_with_a_killed_worker(
        tmp_path, dataclasses.replace(LONG, zero_stage=3), inputs, workers=2
    )
    assert losses(result) == pytest.approx(losses(undisturbed), rel=1e-3, abs=1e-5)
    weights = load_file(tmp_path / "out/adapter/adapter_model.safetensors")
    assert all(weight.numel() and bool(weight.isfinite().all()) for weight in weights.values())


DRIVER = """
import logging, sys, pickle, ray
from pathlib import Path
spec = pickle.loads(Path(sys.argv[1]).read_bytes())
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
from ratchet.jobs.retrieval import finetune_embedder
sys.path.insert(0, "tests/support/clusters")
from step_process import run_step
import json
class Lines:
    def __init__(self, path, name): self.path, self.name = path, name
    def __call__(self, progress):
        with open(self.path, "a") as file: file.write(json.dumps([self.name, progress.done, progress.stage]) + "\\n")
context, config, inputs = spec
from dataclasses import replace
result = run_step(finetune_embedder.run, replace(context, progress=Lines(sys.argv[3], sys.argv[2])), config, inputs)
Path(sys.argv[4]).write_bytes(pickle.dumps(result))
"""


def test_a_killed_driver_goes_on_too(local_ray: None, inputs: Inputs, tmp_path: Path) -> None:
    """What the first driver started dies with it within a second or so: the run must be longer than that. (And few
    checkpoints: Ray Train takes one every two seconds.)"""
    longer = dataclasses.replace(LONG, epochs=6, save_steps=40)
    undisturbed = run_step(finetune_embedder.run, context(tmp_path / "undisturbed"), longer, inputs)
    here = dataclasses.replace(context(tmp_path / "killed"), progress=None)  # type: ignore[arg-type]
    (tmp_path / "spec").write_bytes(pickle.dumps((here, longer, inputs)))

    def driver(name: str) -> subprocess.Popen[bytes]:
        files = [str(tmp_path / part) for part in ("progress", "result")]
        command = [sys.executable, "-c", DRIVER, str(tmp_path / "spec"), name, *files]
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    lines = Lines(tmp_path / "progress")
    first = driver("first")
    while not any(done >= 60 for _, done, _ in lines.read()):
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    first.wait()
    assert driver("second").wait(timeout=300) == 0
    after = [done for name, done, _ in lines.read() if name == "second"]
    assert after, "the first driver's workers finished by themselves"
    assert min(after) >= 40
    result = pickle.loads((tmp_path / "result").read_bytes())
    assert losses(result) == losses(undisturbed)
    assert result.tables == undisturbed.tables


def test_a_killed_worker_goes_on_from_the_middle_of_the_epoch(
    undisturbed: Result, inputs: Inputs, tmp_path: Path
) -> None:
    """Takes a minute: two trainings under Ray Train, one of which loses a worker."""
    result = train_with_a_killed_worker(tmp_path, LONG, inputs, workers=1)
    assert losses(result) == losses(undisturbed)
    assert result.metrics == undisturbed.metrics


@pytest.mark.parametrize("stage", [2])
def test_a_decoder_in_4_bits_learns_with_examples(
    local_ray: None, inputs: Inputs, tiny_decoder: Path, tmp_path: Path, stage: int
) -> None:
    """Takes a minute: training of a decoder in 4 bits on two workers."""
    config = Config(
        epochs=2,
        batch_size=16,
        num_negatives=3,
        learning_rate=2e-3,
        temperature=0.1,
        quantization="nf4",
        dtype="bfloat16",
        zero_stage=stage,
        num_examples=2,
        example_query_max_length=24,
        example_answer_max_length=24,
        max_length=256,
        query_max_length=64,
        task="Find the concept.",
    )
    decoder = dataclasses.replace(inputs, base=tiny_decoder)
    check(config, decoder, {})
    result = run_step(finetune_embedder.run, context(tmp_path, workers=2), config, decoder)
    found = losses(result)
    assert np.mean(found[-3:]) < np.mean(found[:3]) - 0.05
    text = (tmp_path / "out/adapter/encoding_config.json").read_text()
    assert "<instruct>{task}" in text
    assert "Find the concept." in text
