"""The training loop against plain torch on one process, over worker counts and ZeRO stages."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.job import BadArtifact, BadInput, Context, Resources
from jobs.optimization import History, Options, rate
from jobs.trainee import Place
from jobs.training import train

OPTIONS = Options(
    epochs=2,
    learning_rate=0.05,
    schedule="cosine",
    warmup_ratio=0.2,
    weight_decay=0.1,
    gradient_clipping=0.5,
    zero_stage=1,
    seed=7,
    metric="goodness",
)
STEPS = 4


@pytest.fixture(scope="module")
def cluster(local_ray: None) -> None:
    """Workers cannot import this file by the name that pytest gives it."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])


def rows(epoch: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(100 * epoch + step)
    x = torch.randn(8, 5, generator=random)
    return x, x @ torch.arange(15.0).reshape(5, 3) / 10


def fresh() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


class Regression:
    """Rows are dealt out to the workers; the whole batch's loss is the mean over its 8 rows."""

    def __init__(self, place: Place, fail: str = "", cut: int = 1) -> None:
        self.place, self.fail, self.cut, self.steps, self.model = place, fail, cut, [STEPS] * 9, fresh()

    def start(self) -> dict[str, float]:
        if self.fail == "input":
            raise BadInput("rows: none given; expected some; give some")
        return {"goodness": 0.0}

    def parts(self, epoch: int, step: int) -> list[Any]:
        return [functools.partial(self.loss, epoch, step, part) for part in range(self.cut)]

    def loss(self, epoch: int, step: int, part: int = 0) -> tuple[torch.Tensor, int]:
        x, y = (side[self.place.rank :: self.place.workers][part :: self.cut] for side in rows(epoch, step))
        loss = ((self.model(x) - y) ** 2).sum() * self.place.workers / 24
        return (loss * float("nan") if self.fail == "nan" and step == 2 else loss), x.numel()

    def evaluate(self) -> dict[str, float]:
        with torch.no_grad():
            x, y = rows(9, 9)
            return {"goodness": -float(((self.model(x) - y) ** 2).mean())}

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
    """(losses, gradient norms before clipping, weights at the end) of plain torch."""
    model = fresh()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.1)
    losses, norms = [], []
    for epoch in range(2):
        for step in range(STEPS):
            x, y = rows(epoch, step)
            loss = ((model(x) - y) ** 2).mean()
            optimizer.param_groups[0]["lr"] = rate(epoch * STEPS + step, 2 * STEPS, OPTIONS)
            optimizer.zero_grad()
            loss.backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses, norms, model.state_dict()


def check_equal(history: History, best: Path) -> None:
    losses, norms, weights = by_hand()
    assert history.loss == pytest.approx(losses, rel=2e-5)
    assert history.gradient_norm == pytest.approx(norms, rel=2e-4)
    assert history.best == 1
    for name, value in torch.load(best / "weights.pt").items():
        torch.testing.assert_close(value, weights[name], rtol=1e-4, atol=1e-5)


def test_two_workers_do_what_one_process_of_plain_torch_does(cluster: None, tmp_path: Path) -> None:
    history = train(context(tmp_path, 2), OPTIONS, Regression, {"cut": 2}, tmp_path / "best")
    check_equal(history, tmp_path / "best")
    curves = tensorboard(tmp_path / "logs/train")
    assert curves["train/loss"] == {n: pytest.approx(loss, rel=1e-6) for n, loss in enumerate(history.loss, 1)}
    assert curves["train/gradient_norm"][1] == pytest.approx(history.gradient_norm[0], rel=1e-6)
    assert curves["train/learning_rate"][8] == pytest.approx(history.learning_rate[-1], rel=1e-6)
    goodness = [0.0, *(entry["goodness"] for entry in history.evaluations)]
    assert curves["valid/goodness"] == {n: pytest.approx(value) for n, value in zip((0, 4, 8), goodness, strict=True)}


@pytest.mark.slow
def test_more_epochs_go_on_from_fewer_and_end_in_the_same_weights(cluster: None, tmp_path: Path) -> None:
    def trained(name: str, epochs: int, **more: Path) -> History:
        options = replace(OPTIONS, epochs=epochs, schedule="constant", warmup_ratio=0, warmup_steps=2)
        folder = tmp_path / name
        return train(replace(context(folder, 2), **more), options, Regression, {}, folder / "best")

    whole = trained("whole", 3)
    trained("one", 1, state=tmp_path / "state")
    rest = trained("rest", 3, earlier=tmp_path / "state")
    assert rest.resumed == [STEPS]
    assert vars(replace(rest, resumed=[])) == vars(whole)
    weights = [torch.load(tmp_path / name / "best" / "weights.pt") for name in ("rest", "whole")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[1])


class Dies(Regression):
    """Its third step is never done where there are two workers."""

    def parts(self, epoch: int, step: int) -> list[Any]:
        if (step, self.place.workers) == (2, 2):
            os._exit(1)
        return super().parts(epoch, step)


@pytest.mark.soak
def test_a_training_without_shared_state_goes_on_with_another_number_of_workers(cluster: None, tmp_path: Path) -> None:
    options = replace(OPTIONS, zero_stage=0, save_steps=1)
    two = context(tmp_path, 2)
    with pytest.raises(Exception, match=r"(?i)worker"):
        train(two, options, Dies, {}, tmp_path / "best")
    one = replace(two, attempt=2, resources=Resources(1, cpus=2.0, gpus=0.0, retries=1))
    history = train(one, options, Dies, {}, tmp_path / "best")
    assert history.resumed
    assert set(history.resumed) <= {1, 2}
    check_equal(history, tmp_path / "best")


@pytest.mark.slow
def test_a_training_begins_with_as_many_workers_as_there_is_room_for(cluster: None, tmp_path: Path) -> None:
    wanted = context(tmp_path, 2)
    asked = replace(wanted.resources, workers=5, min_workers=1, cpus=1.0)
    history = train(replace(wanted, resources=asked), OPTIONS, Regression, {}, tmp_path / "best")
    check_equal(history, tmp_path / "best")
    assert [path.name for path in (tmp_path / "work/train").glob("*-2")], "the two that two CPUs hold"


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


@pytest.mark.slow
@pytest.mark.parametrize("least", [None, 1])
def test_workers_one_of_which_is_lost_as_they_start_are_started_again(
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
    history = train(given, replace(OPTIONS, zero_stage=0), Regression, {}, tmp_path / "best")
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


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    options = Options(**{**vars(OPTIONS), "warmup_steps": 8})
    with pytest.raises(BadInput, match="warmup_steps: 8 given, of 8 steps"):
        rate(0, 8, options)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "workers"), [(0, 2), (2, 2)])
def test_zero_stages_workers_and_parts_agree(cluster: None, tmp_path: Path, workers: int, stage: int) -> None:
    options = Options(**{**vars(OPTIONS), "zero_stage": stage})
    cut = {"cut": 3 - workers}
    check_equal(train(context(tmp_path, workers), options, Regression, cut, tmp_path / "best"), tmp_path / "best")


class Half(Regression):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.model.to(torch.bfloat16)

    def loss(self, epoch: int, step: int, part: int = 0) -> tuple[torch.Tensor, int]:
        x, y = (part[self.place.rank :: self.place.workers].bfloat16() for part in rows(epoch, step))
        return ((self.model(x) - y).float() ** 2).sum() * self.place.workers / 24, x.numel()

    def evaluate(self) -> dict[str, float]:
        return {"goodness": float(next(self.model.parameters()).float().abs().sum())}


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2])
def test_bfloat16_weights_move_by_less_than_their_own_precision(cluster: None, tmp_path: Path, stage: int) -> None:
    """16 steps of 2e-4 each: less than half of bfloat16's spacing near 0.3, so weights alone would stand still."""
    change = {"zero_stage": stage, "learning_rate": 2e-4, "schedule": "constant", "warmup_ratio": 0.0, "epochs": 4}
    options = Options(**{**vars(OPTIONS), **change, "weight_decay": 0.0, "metric": "goodness"})
    train(context(tmp_path, 2), options, Half, {}, tmp_path / "best")
    before = fresh().to(torch.bfloat16).state_dict()
    kept = sorted((tmp_path / "work/train").glob("*/step-00000016-*/engine/mp_rank_00_model_states.pt"))
    after = torch.load(kept[-1], weights_only=False)["module"]
    name = "0.weight"
    large = before[name].abs() > 0.15
    assert large.sum() >= 10
    assert (before[name] != after[name])[large].float().mean() > 0.5
    assert (before[name] - after[name]).abs().max() < 5e-3


def test_what_a_trainee_raises_comes_out_as_it_is(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="rows: none given"):
        train(context(tmp_path, 1), OPTIONS, Regression, {"fail": "input"}, tmp_path / "best")


def test_a_loss_that_is_no_number_is_refused_with_its_step(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match="nan at step 3"):
        train(context(tmp_path, 1), OPTIONS, Regression, {"fail": "nan"}, tmp_path / "best")


@settings(deadline=None)
@given(
    steps=st.integers(1, 300),
    warmup=st.floats(0, 0.9),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
)
def test_the_rate_rises_then_never_rises_again(steps: int, warmup: float, schedule: Any) -> None:
    options = Options(**{**vars(OPTIONS), "warmup_ratio": warmup, "schedule": schedule})
    rates = [rate(step, steps, options) for step in range(steps)]
    top = rates.index(max(rates))
    assert all(0 < value <= options.learning_rate for value in rates)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == pytest.approx(options.learning_rate)
