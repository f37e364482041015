"""The training loop against plain torch on one process, over worker counts and ZeRO stages."""

from __future__ import annotations

import gc
import importlib
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.exceptions import WorkerCrashedError
from regression import OPTIONS, STEPS, Regression, check_equal, context, fresh, rows
from step_process import run_step

from ratchet.errors import ArtifactError, InputError
from ratchet.jobs.training.checkpoints import list_checkpoints, read_history
from ratchet.jobs.training.config import FinetuneConfig
from ratchet.jobs.training.evaluation import Evaluation
from ratchet.jobs.training.ray_train import train
from ratchet.jobs.training.worker import WorkerInfo


@pytest.fixture(scope="module")
def cluster(local_ray: None) -> None:
    """Workers cannot import this file, nor what it imports from tests/support."""
    from ray import cloudpickle

    for name in (__name__, "regression"):
        cloudpickle.register_pickle_by_value(sys.modules[name])


def test_two_workers_do_what_one_process_of_plain_torch_does(cluster: None, tmp_path: Path) -> None:
    history = run_step(
        train, context(tmp_path, 2), OPTIONS, partial(Regression, cut=2), tmp_path / "best"
    )
    check_equal(history, tmp_path / "best")
    curves = tensorboard(tmp_path / "logs/train")
    assert curves["train/loss"] == {
        n: pytest.approx(loss, rel=1e-6) for n, loss in enumerate(history.loss, 1)
    }
    assert curves["train/gradient_norm"][1] == pytest.approx(history.gradient_norm[0], rel=1e-6)
    assert curves["train/learning_rate"][8] == pytest.approx(history.learning_rate[-1], rel=1e-6)
    goodness = [0.0, *(entry["goodness"] for entry in history.evaluations)]
    assert curves["valid/goodness"] == {
        n: pytest.approx(value) for n, value in zip((0, 4, 8), goodness, strict=True)
    }


@pytest.mark.soak
def test_training_begins_with_fitting_workers(cluster: None, tmp_path: Path) -> None:
    wanted = context(tmp_path, 2)
    asked = replace(wanted.resources, workers=5, min_workers=1, cpus=1.0)
    history = run_step(
        train, replace(wanted, resources=asked), OPTIONS, partial(Regression), tmp_path / "best"
    )
    check_equal(history, tmp_path / "best")
    last = list_checkpoints(wanted)[-1]
    assert read_history(last).workers == 2, "the two that two CPUs hold"


def test_a_checkpoint_with_a_changed_byte_is_not_used(cluster: None, tmp_path: Path) -> None:
    given = context(tmp_path, 1)
    run_step(train, given, OPTIONS, partial(Regression), tmp_path / "first")
    before, last = sorted((tmp_path / "work/train").glob("*/step-*"))
    file = max((last / "engine").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    history = run_step(
        train, replace(given, attempt=2), OPTIONS, partial(Regression), tmp_path / "best"
    )
    assert history.resumed == [STEPS], "it resumed from the checkpoint before"
    check_equal(history, tmp_path / "best")
    assert before.is_dir()
    assert not last.exists()


def test_killed_single_worker_resumes(cluster: None, tmp_path: Path) -> None:
    killed = {"fail": str(tmp_path / "killed")}
    history = run_step(
        train,
        context(tmp_path / "one", 1),
        OPTIONS,
        partial(Regression, **killed),
        tmp_path / "best",
    )
    assert (tmp_path / "killed").exists()
    assert history.resumed == [STEPS]
    check_equal(history, tmp_path / "best")
    given = context(tmp_path / "two", 1)
    fragile = replace(given, resources=replace(given.resources, retries=0))
    with pytest.raises(WorkerCrashedError):
        run_step(
            train,
            fragile,
            OPTIONS,
            partial(Regression, fail=str(tmp_path / "again")),
            tmp_path / "best",
        )


def count_engines(*given: Any) -> int:
    """Train, and return how many engines of DeepSpeed are in memory after it."""
    from deepspeed import DeepSpeedEngine

    train(*given)
    return sum(isinstance(one, DeepSpeedEngine) for one in gc.get_objects())


@pytest.mark.soak
def test_the_process_of_the_step_keeps_nothing_of_a_training(cluster: None, tmp_path: Path) -> None:
    assert (
        run_step(
            count_engines, context(tmp_path, 1), OPTIONS, partial(Regression), tmp_path / "best"
        )
        == 0
    )


LOSES = """
from pathlib import Path
import ray
from ray.train.v2._internal.execution.callback import WorkerGroupCallback

class Loses(WorkerGroupCallback):
    def after_worker_group_start(self, worker_group):
        if not Path({done!r}).exists():
            Path({done!r}).touch()
            ray.kill(worker_group.get_workers()[1].actor)
"""


@pytest.mark.soak
@pytest.mark.parametrize("least", [None, 1])
def test_lost_starting_worker_is_replaced(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int | None
) -> None:
    from ray import cloudpickle

    lost = tmp_path / "lost"
    (tmp_path / "loses.py").write_text(LOSES.format(done=str(lost)))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "loses", raising=False)
    cloudpickle.register_pickle_by_value(importlib.import_module("loses"))
    monkeypatch.setenv("RAY_TRAIN_CALLBACKS", "loses.Loses")
    given = context(tmp_path, 2)
    given = replace(given, resources=replace(given.resources, min_workers=least))
    history = run_step(
        train,
        given,
        replace(OPTIONS, zero_stage=0),
        partial(Regression, cut=1 if least else 2),
        tmp_path / "best",
    )
    assert lost.exists()
    check_equal(history, tmp_path / "best")


def tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    """Scalars by name and step, from the records of TensorBoard's files."""
    from tensorboardX.proto.event_pb2 import Event

    curves: dict[str, dict[int, float]] = {}
    for file in sorted(folder.iterdir()):
        content, start = file.read_bytes(), 0
        while start < len(content):
            size = int.from_bytes(content[start : start + 8], "little")
            event = Event.FromString(content[start + 12 : start + 12 + size])
            for value in event.summary.value:
                curves.setdefault(value.tag, {})[event.step] = value.simple_value
            start += 16 + size
    return curves


@pytest.mark.parametrize(("stage", "workers"), [pytest.param(2, 2, marks=pytest.mark.soak), (3, 1)])
def test_zero_stages_workers_and_parts_agree(
    cluster: None, tmp_path: Path, workers: int, stage: int
) -> None:
    options = FinetuneConfig(**{**vars(OPTIONS), "zero_stage": stage})
    cut = 3 - workers
    check_equal(
        run_step(
            train,
            context(tmp_path, workers),
            options,
            partial(Regression, cut=cut),
            tmp_path / "best",
        ),
        tmp_path / "best",
    )


class Half(Regression):
    def __init__(self, worker: WorkerInfo, config: FinetuneConfig) -> None:
        super().__init__(worker, config)
        self.model.to(torch.bfloat16)

    def loss(self, microbatch: tuple[int, int, int]) -> torch.Tensor:
        epoch, step, _ = microbatch
        x, y = (
            part[self.worker.rank :: self.worker.world_size].bfloat16()
            for part in rows(epoch, step)
        )
        return ((self.model(x) - y).float() ** 2).sum() * self.worker.world_size / 24

    def evaluate(self) -> Evaluation:
        return Evaluation({"goodness": float(next(self.model.parameters()).float().abs().sum())})


@pytest.mark.soak
@pytest.mark.parametrize("stage", [2])
def test_bfloat16_weights_have_master_weights(cluster: None, tmp_path: Path, stage: int) -> None:
    """16 steps of 2e-4 each: less than half of bfloat16's spacing near 0.3, so weights alone would stand still."""
    change = {
        "zero_stage": stage,
        "learning_rate": 2e-4,
        "lr_scheduler_type": "constant",
        "warmup_ratio": 0.0,
        "epochs": 4,
    }
    options = FinetuneConfig(
        **{**vars(OPTIONS), **change, "weight_decay": 0.0, "metric": "goodness"}
    )
    run_step(train, context(tmp_path, 2), options, partial(Half), tmp_path / "best")
    before = fresh().to(torch.bfloat16).state_dict()
    kept = sorted(
        (tmp_path / "work/train").glob("*/step-00000016-*/engine/mp_rank_00_model_states.pt")
    )
    after = torch.load(kept[-1], weights_only=False)["module"]
    name = "0.weight"
    large = before[name].abs() > 0.15
    assert large.sum() >= 10
    assert (before[name] != after[name])[large].float().mean() > 0.5
    assert (before[name] - after[name]).abs().max() < 5e-3


def test_what_a_task_raises_comes_out_as_it_is(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rows: none given"):
        run_step(
            train,
            context(tmp_path, 1),
            OPTIONS,
            partial(Regression, fail="input"),
            tmp_path / "best",
        )


def test_a_loss_that_is_no_number_is_refused_with_its_step(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="nan at training step 3"):
        run_step(
            train, context(tmp_path, 1), OPTIONS, partial(Regression, fail="nan"), tmp_path / "best"
        )
