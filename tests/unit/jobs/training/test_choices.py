"""What a person chooses of a training, checked before it runs: its checkpoint, its end, and its use as a teacher."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.errors import InputError
from ratchet.jobs.comparison import choose_checkpoint
from ratchet.jobs.retrieval import finetune_reranker, rerank
from ratchet.orchestrator.job_interface import Result


@pytest.mark.parametrize(
    ("checkpoint", "known", "message"),
    [
        (3, {"epochs": 2, "keep": "all"}, "checkpoint: 3 given, of 2 epochs"),
        (None, {"epochs": 2, "keep": "best"}, "a training with keep=best given"),
        (3, {"epochs": 3, "keep": "all"}, ""),
        (500, {"keep": "all"}, ""),
        (500, {"keep": "all", "eval_steps": 250}, ""),
        (501, {"keep": "all", "eval_steps": 250}, "with eval_steps=250; expected a multiple"),
    ],
)
def test_the_choice_is_checked_before_the_training(
    checkpoint: int | None, known: dict[str, Any], message: str
) -> None:
    inputs: Any = SimpleNamespace(training=None)
    config = choose_checkpoint.Config(checkpoint)
    parents = {"training": Result({**known, "architecture": "base"})}
    if message:
        with pytest.raises(InputError, match=message):
            choose_checkpoint.check(config, inputs, parents)
    else:
        found = choose_checkpoint.check(config, inputs, parents)
        assert found.metrics["architecture"] == "base", "steps after it estimate their needs"


def test_a_teacher_without_held_out_queries_is_refused_before_the_run() -> None:
    """Unless the user opens its gate."""
    nothing: Any = SimpleNamespace(base=None, valid=None, current_best=None)
    lists: Any = SimpleNamespace(model=None, adapter=None)
    for setting in ("tested", "open"):
        config: Any = finetune_reranker.Config(teacher_gate=setting)
        parents = {"teacher_gate": finetune_reranker.check(config, nothing, {})}
        if setting == "open":
            rerank.check(rerank.Config(), lists, parents)
        else:
            with pytest.raises(InputError, match="a reranker without held-out queries given"):
                rerank.check(rerank.Config(), lists, parents)
    held_out = {"valid": Result()}
    parents = {
        "teacher_gate": finetune_reranker.check(finetune_reranker.Config(), nothing, held_out)
    }
    rerank.check(rerank.Config(), lists, parents)


@pytest.mark.parametrize(
    ("keep", "parents", "refused"),
    [("best", {"valid": Result()}, False), ("best", {}, True), ("last", {"valid": Result()}, True)],
)
def test_patience_needs_a_best_evaluation(keep: Any, parents: Any, refused: bool) -> None:
    nothing: Any = SimpleNamespace(base=None, valid=None, current_best=None)
    config = finetune_reranker.Config(patience=2, keep=keep)
    if refused:
        with pytest.raises(
            InputError, match="patience: 2 given; expected none with keep=last, with"
        ):
            finetune_reranker.check(config, nothing, parents)
    else:
        finetune_reranker.check(config, nothing, parents)
