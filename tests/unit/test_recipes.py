"""Recipes that are built and not run: their steps, and steps that they share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.orchestrator.cli.main import main


def test_ablations_share_what_they_have_in_common(tmp_path: Path) -> None:
    """Steps of the same job, settings and inputs are one step: the first iteration has no teacher in any case."""
    from ratchet.orchestrator.recipe import Settings, build, find
    from ratchet.orchestrator.step import Output, Step

    file = tmp_path / "train.jsonl"
    file.write_text('{"query": "q", "pos": ["p"], "neg": []}\n')
    steps, summary, _ = build(
        find("retriever"), Settings({"ablations": "true", "reranker": "embedder", "data": str(file)})
    )

    def shape(step: Step) -> object:
        inputs = [(n, shape(i.step), i.part) if isinstance(i, Output) else (n, i.path) for n, i in step.references()]
        return (step.job.name, step.config, tuple(inputs))

    def shapes(ending: str) -> list[object]:
        return [shape(step) for step in steps if step.name.endswith(ending)]

    assert {"iteration 1", "iteration 1, no teacher", "iteration 1, no mining"} <= {row.label for row in summary.rows}
    assert len(shapes("iter0/finetune_embedder")) == 3
    assert len(set(shapes("iter0/finetune_embedder"))) == 2, "with and without mining"
    assert len(set(shapes("iter0/mine"))) == 1
    assert len(set(shapes("iter1/finetune_embedder"))) == 3


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("countdown", {}, {"tasks", "base", "start/generate", "checkpoint-3000/evaluate", "checkpoints"}),
        ("countdown", {"base": "BASE", "checkpoints": ""}, {"sft", "best/evaluate"}),
        ("countdown", {"base": "BASE", "teacher": "BASE"}, {"teacher/logprobs", "teacher/test/evaluate"}),
        (
            "gsm8k",
            {"base": "BASE", "data": "x", "teacher": "BASE", "teacher_completions": "4"},
            {"teacher/rejection_sample", "sft"},
        ),
        ("squad", {"base": "BASE", "data": "x"}, {"batch/trained/evaluate", "sequential/sft"}),
    ],
)
def test_recipes_that_answer_can_be_built(
    tmp_path: Path, name: str, settings: dict[str, str], expected: set[str]
) -> None:
    from ratchet.orchestrator.recipe import Settings, build, find

    given = {key: str(tmp_path) if value == "BASE" else value for key, value in settings.items()}
    steps, summary, _ = build(find(name), Settings(given))
    assert expected <= {step.name for step in steps}
    assert all(row.columns for row in summary.rows)


@pytest.mark.parametrize("name", ["countdown", "quickstart"])
def test_a_recipe_that_makes_its_data_can_be_planned(name: str, tmp_path: Path) -> None:
    assert main(["plan", name, "--store", str(tmp_path / "store")]) == 0
