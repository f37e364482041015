"""grpo on Ray: a tiny decoder improves by its verifier's rewards, checkpoints are compared, a killed run resumes."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from grpo_files import FAST, make_grpo_files
from ray import cloudpickle
from safetensors.torch import load_file
from step_process import run_step

from ratchet.jobs.answers import compare_checkpoints, evaluate_answers, generate
from ratchet.jobs.on_policy import grpo, grpo_training
from ratchet.orchestrator.job_interface import Context, Result

MakeContext = Callable[..., Context]


class Killed(grpo_training.GrpoTask):
    """Is killed once, in the fifth training step, if there is a folder named `kill` in `work`."""

    work: Path

    def __init__(self, *given: Any, **arguments: Any) -> None:  # a worker's copy needs its own
        super().__init__(*given, **arguments)
        self.kill = self.work / "kill"

    def _answer(self, prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
        if trainer.state.global_step == 4 and self.worker.rank == 0 and self.kill.exists():
            self.kill.rmdir()
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._answer(prompts, trainer)


@pytest.fixture(scope="module")
def inputs(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> grpo.Inputs:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    return make_grpo_files(tmp_path_factory.mktemp("grpo"))


def train(context: Context, config: grpo.Config, inputs: grpo.Inputs) -> Result:
    grpo.check(config, inputs, {})
    return run_step(grpo.run, context, config, inputs)


def train_killed(context: Context, config: grpo.Config, inputs: grpo.Inputs) -> Result:
    """In the process of the step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grpo_training, "GrpoTask", Killed)
        Killed.work = context.work
        return grpo.run(context, config, inputs)


def test_a_decoder_learns_what_its_verifier_accepts(
    inputs: grpo.Inputs, context: MakeContext
) -> None:
    made = context(name="learns", cpus=1.0)
    result = train(made, dataclasses.replace(FAST, steps=30, checkpoints=(10, 20)), inputs)
    rewards = result.curves["reward against step"]["y"]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
    assert [row["step"] for row in result.tables["steps"]] == ["start", "10", "20", "30"]
    start, best = (result.metrics[f"valid/accuracy_{name}"] for name in ("start", "best"))
    assert result.metrics["improved"] == (best > start)
    assert result.metrics["valid/accuracy"] == max(start, best)
    assert (result.metrics["samples"], result.metrics["too_long"]) == (7, 0)

    evaluations = []
    for name in ("checkpoint-10", "checkpoint-20"):
        answers, evaluated = context(name=f"{name}-generate"), context(name=f"{name}-evaluate")
        config = generate.Config(
            num_completions=4, temperature=1.0, max_new_tokens=6, dtype="float32"
        )
        generate.JOB.run(answers, config, generate.Inputs(made.out / name, inputs.valid))
        evaluate_answers.JOB.run(
            evaluated,
            evaluate_answers.Config(k=(1, 4)),
            evaluate_answers.Inputs(answers.out, inputs.verifier_file),
        )
        evaluations.append(evaluated.out)
    given = compare_checkpoints.Inputs(made.out, tuple(evaluations))
    compared = compare_checkpoints.JOB.run(
        context(name="compare"), compare_checkpoints.Config(steps=(10, 20)), given
    )
    assert [row["step"] for row in compared.tables["checkpoints"]] == ["10", "20"]
    assert {"pass@1", "pass@4", "valid/accuracy", "gradient_norm", "note"} <= set(
        compared.tables["checkpoints"][0]
    )


@pytest.mark.soak
@pytest.mark.parametrize(("method", "workers"), [("full", 1), ("lora", 1), ("lora", 2)])
def test_a_killed_worker_goes_on_with_the_same_result(
    inputs: grpo.Inputs, context: MakeContext, method: Any, workers: int
) -> None:
    config = dataclasses.replace(
        FAST, method=method, batch_size=4, checkpoints=(3,), kl_weight=0.1, allow_regression=True
    )
    calm = context(name="calm", workers=workers, cpus=1.0)
    killed = context(name="killed", workers=workers, cpus=1.0, retries=1)
    expected = train(calm, config, inputs)
    (killed.work / "kill").mkdir()
    assert run_step(train_killed, killed, config, inputs) == expected
    assert not (killed.work / "kill").exists()
    (last,) = killed.work.glob("train/*/step-00000006-*")
    assert json.loads((last / "history.json").read_text())["resumed"] == [4]
    assert not list(killed.work.glob("train/*/unfinished-*"))
    assert expected.curves["KL divergence against step"]["y"][-1] > 0
    for weights in calm.out.rglob("*.safetensors"):
        one, other = load_file(weights), load_file(killed.out / weights.relative_to(calm.out))
        assert all((other[name] == value).all() for name, value in one.items())


@pytest.mark.parametrize("method", ["lora", pytest.param("full", marks=pytest.mark.soak)])
def test_workers_change_nothing(
    inputs: grpo.Inputs, context: MakeContext, tmp_path: Path, method: Any
) -> None:
    """Two of three workers train: they divide four questions."""
    config = dataclasses.replace(
        FAST, method=method, batch_size=4, steps=4, kl_weight=0.1, allow_regression=True
    )
    alone = train(context(name="alone", cpus=1.0), config, inputs)
    two = context(name="two", workers=3, cpus=1.0)
    together = train(two, config, inputs)
    for name in ("reward", "completion length"):
        curve = f"{name} against step"
        assert together.curves[curve] == alone.curves[curve], name
    for name in ("loss", "gradient norm", "KL divergence"):
        curve = f"{name} against step"
        expected = pytest.approx(alone.curves[curve]["y"], rel=1e-3, abs=1e-5)
        assert together.curves[curve]["y"] == expected, name
    assert together.metrics["valid/accuracy"] == alone.metrics["valid/accuracy"]
    (last,) = two.work.glob("train/*/step-00000004-*")
    assert json.loads((last / "history.json").read_text())["workers"] == 2
