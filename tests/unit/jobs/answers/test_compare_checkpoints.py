"""The held-out rows select the best checkpoint; test questions have no influence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.jobs.answers.compare_checkpoints import Config, Inputs, run
from ratchet.orchestrator.job_interface import Context


@pytest.mark.parametrize(
    ("metric", "accuracy", "eval_loss", "best"),
    [
        ("accuracy", [0.2, 0.6, 0.5], [3.0, 2.0, 1.0], "10"),
        ("accuracy", [0.2, 0.5, 0.5], [3.0, 2.0, 1.0], "20"),  # a tie, decided by the loss
        ("eval_loss", [0.2, 0.6, 0.5], [3.0, 2.0, 1.0], "20"),
        ("eval_loss", [0.2, 0.6, 0.5], [1.0, 2.0, 1.5], "start"),
        ("eval_loss", None, [3.0, 2.0, 2.5], "10"),
    ],
)
def test_the_test_questions_do_not_choose(
    metric: str,
    accuracy: list[float] | None,
    eval_loss: list[float],
    best: str,
    tmp_path: Path,
    context: Callable[..., Context],
) -> None:
    steps = [
        {"step": name, "loss": 1.0, "valid/eval_loss": eval_loss[i]}
        for i, name in enumerate(("start", "10", "20"))
    ]
    for i, row in enumerate(steps):
        row |= {} if accuracy is None else {"valid/accuracy": accuracy[i]}
    history = {
        "metric": metric,
        "tables": {"steps": steps},
        "curves": {"gradient norm against step": {"y": [1.0] * 20}},
    }
    (tmp_path / "history.json").write_text(json.dumps(history))
    tested = {"start": 0.9, "10": 0.3, "20": 0.4}
    for name, value in tested.items():
        (tmp_path / name).mkdir()
        failures = {"start": {"wrong": 1}, "10": {"wrong": 2, "vague": 5}, "20": {"vague": 1}}[name]
        summary = {"metrics": {"pass@1": value}, "failures": failures, "questions": 10}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    inputs = Inputs(tmp_path, (tmp_path / "10", tmp_path / "20"), tmp_path / "start")
    result = run(context(1), Config((10, 20)), inputs)
    assert result.metrics["best_checkpoint"] == best
    assert result.metrics["pass@1"] == tested[best]
    (row,) = (row for row in result.tables["checkpoints"] if "best" in row["note"])
    assert row["step"] == best
    assert [(one["wrong"], one["vague"]) for one in result.tables["checkpoints"]] == [
        (1, 0),
        (2, 5),
        (0, 1),
    ]
    assert result.curves["share of questions failed against step | vague"]["y"] == [0.0, 0.5, 0.1]
