"""The held-out rows select the best checkpoint; test questions have no influence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.data.tasks import get_task
from ratchet.errors import InputError
from ratchet.jobs.answers.compare_checkpoints import Config, Inputs, check, run
from ratchet.jobs.answers.evaluate_answers import Answers
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
        counts = {"passed": 10 - sum(failures.values()), "failures": failures, "truncated": 1}
        summary = {"metrics": {"pass@1": value}, "counts": {"1": counts}, "questions": 10}
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


def test_the_tables_have_the_columns_of_the_published_ones(
    tmp_path: Path, context: Callable[..., Context]
) -> None:
    """Two checkpoints and a baseline with four completions; columns in the order of the settings."""
    row = {"loss": 0.43, "valid/eval_loss": 0.21, "valid/accuracy": 0.5}
    history = {
        "metric": "accuracy",
        "tables": {"steps": [{"step": name, **row} for name in ("500", "1000")]},
        "curves": {"gradient norm against step": {"y": [4.75] * 1000}},
    }
    (tmp_path / "history.json").write_text(json.dumps(history))
    for name in ("500", "1000", "other"):
        (tmp_path / name).mkdir()
        one = {"passed": 5, "failures": {"wrong": 3, "vague": 2}, "truncated": 1}
        four = {"passed": 7, "failures": {"wrong": 1, "vague": 2}, "truncated": 0}
        metrics = {"pass@1": 0.5, "pass@4": 0.7}
        summary = {"metrics": metrics, "counts": {"1": one, "4": four}, "questions": 10}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    evaluations = (tmp_path / "500", tmp_path / "1000")
    inputs = Inputs(tmp_path, evaluations, baselines=(tmp_path / "other",))
    config = Config((500, 1000), names=("other_baseline",), failures_at_1=("vague", "wrong"))
    check(config, inputs, {})
    tables = run(context(1), config, inputs).tables
    assert list(tables) == ["checkpoints", "k=1", "k=4", "losses"]
    assert list(tables["k=1"][0].items()) == [
        ("Checkpoint", "500"),
        ("Total", 10),
        ("Correct", 5),
        ("Accuracy", 0.5),
        ("vague", 2),
        ("wrong", 3),
        ("truncated", 1),
    ]
    assert list(tables["k=4"][2].items()) == [
        ("N", "other_baseline"),
        ("Total", 10),
        ("Passed (pass@4)", 7),
        ("Pass@4", 0.7),
        ("wrong", 1),
        ("vague", 2),
        ("truncated", 0),
    ]
    assert [one["Checkpoint"] for one in tables["k=1"]] == ["500", "1000", "other_baseline"]
    assert list(tables["losses"][1].items()) == [
        ("Steps", "1000"),
        ("Train Loss", 0.43),
        ("Eval Loss", 0.21),
        ("Grad Norm", 4.75),
    ]
    with pytest.raises(InputError, match=r"compare_checkpoints\.names: 0 names given, for 1"):
        check(Config((500, 1000)), inputs, {})


def test_an_answer_that_is_cut_off_has_a_failure_and_is_counted() -> None:
    """The newest completion tells why a question was not answered; the counts are those of a loop over the texts."""
    right, wrong, cut = "<answer>1 + 2 = 3</answer>", "<answer>1 - 2</answer>", "<think>1 + 2"
    texts = [[right, cut], [cut, right], [cut, wrong], [wrong, cut], [cut, cut], [right, right]]
    found = Answers()
    for number, own in enumerate(texts):
        row = {"id": str(number), "group": str(number), "questions": ["?"], "seconds": None}
        row |= {"gold": json.dumps({"nums": [1, 2], "target": 3}), "shared_tokens": 0}
        row |= {"answers": [[text] for text in own], "truncated": [[text == cut] for text in own]}
        for name in ("new_prompt_tokens", "generated_tokens", "prompt_tokens"):
            row[name] = [1, 1]
        found.add(get_task("countdown"), row)
    names = ("missing_answer_tags", "wrong_value")
    assert found.count(names, 1) == {
        "passed": 2,
        "failures": {"missing_answer_tags": 3, "wrong_value": 1},
        "truncated": 3,
    }
    assert found.count(names, 2) == {
        "passed": 3,
        "failures": {"missing_answer_tags": 2, "wrong_value": 1},
        "truncated": 2,
    }
    metrics = found.compute_metrics((1, 2))
    assert metrics["truncated"] == pytest.approx(6 / 12)
    assert metrics["pass@2"] == pytest.approx(3 / 6)
