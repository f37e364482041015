"""Chats, from the file to verified answers: a user's own verifier, kept epochs, truncated answers, mathematics."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from countdown_files import FAST, TINY
from safetensors.torch import load_file
from step_process import run_step

from ratchet.data.tables import read_shards
from ratchet.data.tasks import chat
from ratchet.jobs.answers import evaluate_answers, generate, prepare_tasks, sft
from ratchet.jobs.synthetic import init_decoder
from ratchet.models.decoder import decoder
from ratchet.orchestrator.job_interface import Context

MakeContext = Callable[..., Context]

MINE = """
def verify(gold, answers):
    return 1.0 if answers[-1].strip() == gold else "other"
"""


def test_chats_are_trained_on_and_answered(
    local_ray: None, context: MakeContext, tmp_path: Path
) -> None:
    talks = [(a, b) for a in range(9) for b in range(9)]
    rows = [
        {"messages": [
            {"role": "user", "content": f"{a} and {b}"}, {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "again"}, {"role": "assistant", "content": f"{a}"},
        ]} for a, b in talks
    ]  # fmt: skip
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "mine.py").write_text(MINE)
    config = prepare_tasks.Config("chat", verifier="verify", validation_fraction=0.1, max_test=6)
    given = prepare_tasks.Inputs(tmp_path / "chats.jsonl", verifier_file=tmp_path / "mine.py")
    assert prepare_tasks.check(config, given, {}).metrics["train"] == 66
    prepared, base, trained = (context(1, name=name) for name in ("prepared", "base", "trained"))
    prepare_tasks.JOB.run(prepared, config, given)
    init_decoder.JOB.run(base, TINY, init_decoder.Inputs(prepared.out / "train"))

    verifier = {"verifier_file": tmp_path / "mine.py"}
    inputs = sft.Inputs(base.out, prepared.out / "train", prepared.out / "valid", **verifier)
    training = dataclasses.replace(
        FAST, method="lora", epochs=3, keep="all", max_new_tokens=2, allow_regression=True
    )
    sft.check(training, inputs, {})
    result = run_step(sft.run, trained, training, inputs)
    (best,) = [row["epoch"] for row in result.tables["epochs"] if row["best"]]
    assert result.metrics["kept"] == f"epoch {best}"
    adapters = {
        path.name: load_file(path / "adapter_model.safetensors") for path in trained.out.glob("*/")
    }
    assert set(adapters) == {"adapter", *(f"checkpoint-epoch-{n}" for n in (1, 2, 3))}
    flat = {
        name: np.concatenate([w.numpy().ravel() for w in own.values()])
        for name, own in adapters.items()
    }
    same = [n for n in (1, 2, 3) if np.array_equal(flat["adapter"], flat[f"checkpoint-epoch-{n}"])]
    assert same == [int(best)]
    assert result.metrics["trainable_weights"] == len(flat["adapter"])
    talk = decoder.load_conversations(base.out)
    samples = read_shards(prepared.out / "train").to_pylist()
    tokens = [
        talk.tokenize_sample(one["system"], one["questions"], one["targets"]) for one in samples
    ]
    sizes = {"sample": [len(t.ids) for t in tokens], "target": [t.labels for t in tokens]}
    sizes["prompt"] = [a - b for a, b in zip(sizes["sample"], sizes["target"], strict=True)]
    for row in result.tables["tokens per training sample"]:
        own = sizes[row["tokens of"]]
        assert row["mean"] == pytest.approx(sum(own) / len(own), abs=0.05)
        assert (row["P95"], row["max"]) == (
            pytest.approx(np.percentile(own, 95), abs=0.05),
            max(own),
        )

    answered, evaluated = context(1, name="answered"), context(1, name="evaluated")
    config_of_answers = generate.Config(max_new_tokens=2, dtype="float32")
    given_answers = generate.Inputs(base.out, prepared.out / "test", trained.out / "adapter")
    generate.JOB.run(answered, config_of_answers, given_answers)
    said = read_shards(answered.out).to_pylist()
    found = evaluate_answers.JOB.run(
        evaluated,
        evaluate_answers.Config(k=(1,)),
        evaluate_answers.Inputs(answered.out, **verifier),
    )
    labels = {row["label"]: row["answers"] for row in found.tables["answers by label"]}
    cut = [row["truncated"][0][-1] for row in said]
    assert found.metrics["truncated"] == pytest.approx(sum(cut) / len(said))
    assert "truncated" not in labels
    assert sum(labels.values()) == len(said) == 6
    assert found.metrics["questions"] == 6
    assert found.metrics["score"] == pytest.approx(found.metrics["pass@1"])


needs_math = pytest.mark.skipif(
    importlib.util.find_spec("math_verify") is None, reason="needs math-verify"
)


@needs_math
def test_math_compares_by_value_also_outside_the_main_thread() -> None:
    """Math-verify refuses to run in other threads, and trainings verify answers in one."""
    cases = [
        ("1/2", "So it is 0.5", "correct"),
        (r"\frac{1}{2}", r"The answer is \boxed{0.5}", "correct"),
        ("x^2+1", "We find $1+x^2$.", "correct"),
        ("x^2+1", r"\boxed{x^2-1}", "wrong_value"),
        (r"It takes $3 \cdot 14 = 42$ days. \boxed{42}", r"\boxed{42}", "correct"),
        (42, "#### 42", "correct"),
        ("42", r"\boxed{43}", "wrong_value"),
        ("42", "no idea", "missing_answer"),
        ("", "42", "gold_not_parsed"),
    ]
    verify, found = chat.make_task("math").verify, []
    thread = threading.Thread(
        target=lambda: found.extend(
            verify(gold, ["first turn", answer])[0].label for gold, answer, _ in cases
        )
    )
    thread.start()
    thread.join()
    assert found == [label for *_, label in cases]


@needs_math
def test_slow_math_is_given_up(monkeypatch: Any) -> None:
    verify = chat.make_task("math").verify
    assert verify("42", ["42"])[0].label == "correct"
    monkeypatch.setattr(chat, "SECONDS", 0.2)
    assert (
        verify("42", [r"\boxed{9^{9^{9^{9}}}}"])[0].label == "too_complex"
    )  # math-verify needs five seconds
    monkeypatch.undo()
    assert verify("42", ["42"])[0].label == "correct"
