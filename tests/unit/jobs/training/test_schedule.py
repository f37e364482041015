"""The schedules of the learning rate and of checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from regression import OPTIONS

from ratchet.errors import InputError
from ratchet.jobs.retrieval import finetune_embedder
from ratchet.jobs.training.config import FinetuneConfig
from ratchet.jobs.training.schedule import TrainHistory, is_better, is_finished, learning_rate_at
from ratchet.jobs.training.trainer import Trainer


def test_a_warm_up_longer_than_the_run_is_refused() -> None:
    options = FinetuneConfig(**{**vars(OPTIONS), "warmup_steps": 8})
    with pytest.raises(InputError, match="warmup_steps: 8 given, of 8 steps"):
        learning_rate_at(0, 8, options)


@pytest.mark.parametrize(
    ("patience", "best", "evaluations", "finished"),
    [(None, 0, 5, False), (2, 2, 3, False), (2, 2, 4, False), (2, 2, 5, True), (1, 0, 2, True)],
)
def test_patience_ends_a_training(
    patience: int | None, best: int, evaluations: int, finished: bool
) -> None:
    config = FinetuneConfig(epochs=9, patience=patience)
    history = TrainHistory(epoch=evaluations, evaluations=[{"loss": 1.0}] * evaluations, best=best)
    assert is_finished(history, config) == finished
    assert not is_finished(TrainHistory(), config)
    assert is_finished(replace(history, epoch=9), config)


@settings(deadline=None)
@given(
    steps=st.integers(1, 300),
    warmup=st.floats(0, 0.9),
    schedule=st.sampled_from(["cosine", "linear", "constant"]),
)
def test_the_rate_rises_then_never_rises_again(steps: int, warmup: float, schedule: Any) -> None:
    options = FinetuneConfig(
        **{**vars(OPTIONS), "warmup_ratio": warmup, "lr_scheduler_type": schedule}
    )
    rates = [learning_rate_at(step, steps, options) for step in range(steps)]
    top = rates.index(max(rates))
    assert all(0 < value <= options.learning_rate for value in rates)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == pytest.approx(options.learning_rate)


def test_later_evaluation_wins_without_metric() -> None:
    assert is_better("map@25", {"loss": 2.0}, {"loss": 1.0})
    assert not is_better("map@25", {"map@25": 0.5}, {"map@25": 0.5})


@pytest.mark.parametrize(
    "metric", ["eval_loss", "perplexity", "mean_rank", "accuracy", "map@25", "hit@10", "p@5"]
)
def test_training_and_sweeps_prefer_the_same_values(metric: str) -> None:
    higher = finetune_embedder.JOB.direction(f"valid/{metric}") > 0
    assert is_better(metric, {metric: 2.0}, {metric: 1.0}) == higher
    assert is_better(metric, {metric: 1.0}, {metric: 2.0}) != higher


def test_save_steps_cross_epochs() -> None:
    loop = object.__new__(Trainer)
    loop.config, loop.history = replace(OPTIONS, save_steps=3, eval_steps=100), TrainHistory()
    due = []
    for done in range(1, 10):
        loop.history.loss.append(0.0)
        if loop._is_save_due(len(loop.history.loss)):
            due.append(done)
        loop.history.epoch, loop.history.step = divmod(done, 2)
    assert due == [3, 6, 9]


def test_each_notice_is_new_once() -> None:
    loop = object.__new__(Trainer)
    loop.notice = None
    notices = iter([None, "one machine", "one machine", "two machines", None])
    loop.find_notice = lambda: next(notices)
    assert [loop._find_new_notice() for _ in range(5)] == [False, True, False, True, False]
