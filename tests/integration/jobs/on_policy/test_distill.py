"""distill on Ray: a tiny student approaches its teacher, a killed run resumes, workers change nothing."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distill_files import FAST, make_distill_files
from ray import cloudpickle
from safetensors.torch import load_file
from step_process import run_step

from ratchet.jobs.on_policy import distill, distill_training
from ratchet.jobs.training.task import Batch
from ratchet.orchestrator.job_interface import Context, Result

MakeContext = Callable[..., Context]


class Killed(distill_training.DistillTask):
    """Is killed once, in the fifth training step, if there is a folder named `kill` in `work`."""

    work: Path

    def __init__(self, *given: Any, **arguments: Any) -> None:  # a worker's copy needs its own
        super().__init__(*given, **arguments)
        self.kill = self.work / "kill"

    def batch(self, epoch: int, step: int) -> Batch:
        if step == 4 and self.worker.rank == 0 and self.kill.exists():
            self.kill.rmdir()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(epoch, step)


@pytest.fixture(scope="module")
def inputs(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> distill.Inputs:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    return make_distill_files(tmp_path_factory.mktemp("distill"))


def train(context: Context, config: distill.Config, inputs: distill.Inputs) -> Result:
    distill.check(config, inputs, {})
    return run_step(distill.run, context, config, inputs)


def train_killed(context: Context, config: distill.Config, inputs: distill.Inputs) -> Result:
    """In the process of the step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distill_training, "DistillTask", Killed)
        Killed.work = context.work
        return distill.run(context, config, inputs)


@pytest.mark.parametrize("lmbda", [1.0, pytest.param(0.5, marks=pytest.mark.soak)])
def test_a_student_approaches_its_teacher(
    inputs: distill.Inputs, context: MakeContext, lmbda: float
) -> None:
    made = context(name="learns", cpus=1.0)
    config = dataclasses.replace(
        FAST, steps=40, checkpoints=(10, 20), lmbda=lmbda, metric="eval_loss", warmup_ratio=0.0
    )
    result = train(made, config, inputs)
    losses = result.curves["loss against step"]["y"]
    assert sum(losses[-5:]) / 5 < 0.6 * losses[0]
    rows = result.tables["steps"]
    assert [row["step"] for row in rows] == ["start", "10", "20", "40"]
    assert {"loss", "valid/eval_loss", "valid/accuracy"} <= set(rows[0])
    assert rows[-1]["valid/eval_loss"] < 0.8 * rows[0]["valid/eval_loss"]
    assert len(result.curves["gradient norm against step"]["y"]) == 40
    assert {"checkpoint-10", "checkpoint-20", "checkpoint-40", "model", "history.json"} <= {
        path.name for path in made.out.iterdir()
    }
    assert (result.metrics["samples"], result.metrics["too_long"]) == (7, 0)
    if lmbda == 1:
        assert result.metrics["on_policy_steps"] == 40


@pytest.mark.soak
@pytest.mark.parametrize(("method", "workers"), [("full", 1), ("lora", 1), ("lora", 2)])
def test_a_killed_worker_goes_on_with_the_same_result(
    inputs: distill.Inputs, context: MakeContext, method: Any, workers: int
) -> None:
    config = dataclasses.replace(FAST, method=method, checkpoints=(3,), allow_regression=True)
    calm = context(name="calm", workers=workers, cpus=1.0)
    killed = context(name="killed", workers=workers, cpus=1.0, retries=1)
    expected = train(calm, config, inputs)
    assert 0 < expected.metrics["on_policy_steps"] < 6
    (killed.work / "kill").mkdir()
    assert run_step(train_killed, killed, config, inputs) == expected
    assert not (killed.work / "kill").exists()
    (last,) = killed.work.glob("train/*/step-00000006-*")
    assert json.loads((last / "history.json").read_text())["resumed"] == [4]
    for weights in calm.out.rglob("*.safetensors"):
        one, other = load_file(weights), load_file(killed.out / weights.relative_to(calm.out))
        assert all((other[name] == value).all() for name, value in one.items())


@pytest.mark.parametrize("method", ["lora", pytest.param("full", marks=pytest.mark.soak)])
def test_workers_change_nothing(inputs: distill.Inputs, context: MakeContext, method: Any) -> None:
    config = dataclasses.replace(FAST, method=method, steps=4, lmbda=1.0, allow_regression=True)
    alone = train(context(name="alone", cpus=1.0), config, inputs)
    together = train(context(name="two", workers=2, cpus=1.0), config, inputs)
    for name in ("loss", "gradient norm"):
        curve = f"{name} against step"
        expected = pytest.approx(alone.curves[curve]["y"], rel=1e-3, abs=1e-5)
        assert together.curves[curve]["y"] == expected, name
    assert together.metrics["valid/accuracy"] == alone.metrics["valid/accuracy"]
