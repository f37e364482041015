"""Whether a trained model replaces the current best."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ratchet.data.significance import compute_p_value
from ratchet.jobs.answers.sft import Config as SftConfig
from ratchet.jobs.retrieval.finetune_embedder import Config
from ratchet.jobs.retrieval.reranker_training import evaluate_lists
from ratchet.jobs.training.evaluation import Decision, decide, draw_rows, evaluate_rows
from ratchet.jobs.training.schedule import TrainHistory
from ratchet.models.search.rank_metrics import compute_rank_metrics
from ratchet.models.search.ranks import Relevant

GROUPS = 40


def make_history(*gains: float, unseen: float = 0.0) -> TrainHistory:
    """Evaluations whose metric per group differs from the start by these gains and some noise; on unseen labels by
    `unseen`."""
    random = np.random.default_rng(0)
    start = random.random(GROUPS)
    history = TrainHistory(
        start={"map@25": float(start.mean())}, start_sums={"all": start.tolist()}
    )
    history.start_sums["unseen"] = [0.3] * GROUPS
    for gain in gains:
        after = start + gain + random.normal(0, 0.1, GROUPS)
        history.evaluations.append({"loss": 1.0, "map@25": float(after.mean())})
        history.sums.append({"all": after.tolist(), "unseen": [0.3 + unseen] * GROUPS})
    history.best = int(np.argmax([one["map@25"] for one in history.evaluations]))
    return history


def test_a_gain_must_be_more_than_chance() -> None:
    assert not decide(Config(), make_history(0.0, 0.2)).reason
    reason = decide(Config(), make_history(0.0, 0.012)).reason
    assert reason.startswith("no epoch was significantly better, p 0.")
    assert not decide(Config(significance_level=1.0), make_history(0.0, 0.012)).reason
    assert decide(Config(eval_steps=1), make_history(-0.2)) == Decision("no step was better")


def test_few_groups_are_named() -> None:
    def decide_of(groups: int) -> str:
        sums = [{"all": [value] * groups} for value in (0.1, 0.9)]
        means = [{"map@25": 0.1}, {"loss": 1.0, "map@25": 0.9}]
        history = TrainHistory(
            start=means[0], start_sums=sums[0], evaluations=means[1:], sums=sums[1:], best=0
        )
        return decide(Config(), history).reason

    assert decide_of(4).endswith(": 4 groups are too few to tell")
    assert not decide_of(5)


def test_gain_on_seen_does_not_pay_for_unseen() -> None:
    reason = decide(Config(), make_history(0.2, unseen=-0.1)).reason
    assert reason == "the best epoch is worse on unseen labels"
    assert not decide(Config(), make_history(0.2, unseen=0.1)).reason


def test_without_sums_the_metric_decides_alone() -> None:
    history = TrainHistory(
        start={"accuracy": 0.5}, evaluations=[{"loss": 1.0, "accuracy": 0.51}], sums=[{}], best=0
    )
    assert decide(SftConfig(metric="accuracy"), history) == Decision("")
    assert decide(
        Config(), TrainHistory(evaluations=[{"loss": 1.0}], sums=[{}], best=0)
    ) == Decision("")


@pytest.mark.parametrize("column", ["group", "paper"])
def test_sums_are_those_of_each_group_and_of_unseen_labels(column: str) -> None:
    seen_Q = np.array([True, True, False, False, True])
    rows: dict[str, Any] = {"id": list("abcde"), column: ["y", "x", "y", "z", "z"]}
    ranks_R = np.array([1, 4, 2, 30, 5])
    relevant = Relevant.from_lists([[0]] * 5)
    table = pa.table(rows | ({"seen": seen_Q} if column == "group" else {}))
    found = evaluate_rows(table, "map@25", ranks_R, relevant, "r@25", group=column)
    value_Q = compute_rank_metrics(ranks_R, relevant, (25,)).per_query["map@25"]
    assert found.metrics["map@25"] == pytest.approx(value_Q.mean(), abs=1e-6)
    assert found.metrics["r@25"] == 0.8
    assert found.sums["all"] == pytest.approx([0.25, 1.5, 0.2], abs=1e-6)
    if column == "group":
        assert found.metrics["unseen/map@25"] == pytest.approx(value_Q[~seen_Q].mean(), abs=1e-6)
        assert found.sums["unseen"] == pytest.approx([0.0, 0.5, 0.0], abs=1e-6)
    else:
        assert set(found.sums) == {"all"}
    alone = evaluate_rows(table.drop_columns([column]), "map@25", ranks_R, relevant, group=column)
    assert alone.sums["all"] == pytest.approx(value_Q.tolist(), abs=1e-6)


def make_small_history(groups: int, gain: float, changed: int) -> TrainHistory:
    """A metric that improves for `changed` groups only, and a loss that falls by `gain` in every group."""
    start, after = [0.5] * groups, [1.0] * changed + [0.5] * (groups - changed)
    loss = np.linspace(1.0, 2.0, groups)
    history = TrainHistory(start={"map@25": 0.5, "eval_loss": float(loss.mean())})
    history.start_sums = {"all": start, "loss": (-loss).tolist()}
    history.evaluations = [
        {"loss": 1.0, "map@25": float(np.mean(after)), "eval_loss": float(loss.mean() - gain)}
    ]
    history.sums = [{"all": after, "loss": (gain - loss).tolist()}]
    history.best = 0
    return history


@pytest.mark.parametrize("changed", [0, 1, 4])
def test_the_loss_decides_where_the_metric_cannot(changed: int) -> None:
    decision = decide(Config(), make_small_history(6, 0.1, changed))
    assert decision == Decision("", pytest.approx(0.5**6, abs=0.005), by_loss=True)
    refused = decide(Config(), make_small_history(6, -0.1, changed))
    assert refused.reason.startswith("no epoch was")


@pytest.mark.parametrize(("changed", "by_loss"), [(19, True), (20, False)])
def test_the_loss_decides_where_fewer_groups_changed_than_asked(
    changed: int, by_loss: bool
) -> None:
    decision = decide(Config(), make_small_history(40, 0.1, changed), least_changed=20)
    assert decision.by_loss == by_loss
    assert not decision.reason


def test_the_metric_decides_where_it_can() -> None:
    decision = decide(Config(), make_small_history(6, -0.1, 5))
    assert decision == Decision("", pytest.approx(0.5**5, abs=0.005))


def test_p_value_corrects_for_choice() -> None:
    before = np.zeros(6)
    after = np.array([[0.1] * 6, [0.3] * 6])
    alone = compute_p_value(before, after[:1])
    assert compute_p_value(before, after, chosen=1) == pytest.approx(alone, abs=0.01)
    assert compute_p_value(before, after, chosen=0) > 2 * alone


@pytest.mark.parametrize("grades", [[[1, 3], [2]], None])
def test_selecting_metric_uses_grades(grades: list[list[int]] | None) -> None:
    """As the embedder and the reranker evaluate: the ranks of the positives in their order, without grades."""
    columns: dict[str, Any] = {"id": ["q", "r"], "positives": [["a", "b"], ["c"]]}
    valid = pa.table(columns if grades is None else columns | {"grades": grades})
    ranks_R = np.array([1, 2, 3])
    plain = Relevant(np.array([0, 2, 3]), np.array([0, 1, 2]))
    found = evaluate_rows(valid, "ndcg@10", ranks_R, plain).metrics["ndcg@10"]
    graded = plain if grades is None else replace(plain, grades=np.concatenate(grades))
    expected = compute_rank_metrics(ranks_R, graded, [10]).values["ndcg@10"]
    assert found == pytest.approx(expected, abs=1e-6)
    first = (1 + 3 / np.log2(3)) / (3 + 1 / np.log2(3)) if grades else 1.0
    assert found == pytest.approx((first + 0.5) / 2, abs=1e-6)
    reranked = evaluate_lists("ndcg@10", valid, [[1, 2], [3]])
    assert reranked.metrics["ndcg@10"] == found


def test_a_fraction_of_the_groups_is_drawn_whole() -> None:
    groups = [f"g{i // 3}" for i in range(60)]
    valid = pa.table({"id": [str(i) for i in range(60)], "group": groups})
    drawn = draw_rows(valid, 0.4, seed=1)
    assert len(drawn) == 24
    assert drawn.tolist() == sorted(drawn)
    kept = {groups[row] for row in drawn}
    assert len(kept) == 8, "whole groups"
    assert draw_rows(valid, 0.4, seed=2).tolist() != drawn.tolist()
    assert draw_rows(valid, 1.0, seed=1).tolist() == list(range(60))
    assert len(draw_rows(valid, 0.001, seed=1)) == 3
