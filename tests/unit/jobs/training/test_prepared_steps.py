"""Training steps that are prepared ahead, in a thread that shares the tokenizer with evaluations."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import embedder_finetuning
import pytest
import reranker_finetuning

from ratchet.jobs.retrieval import finetune_embedder
from ratchet.jobs.retrieval.embedder_training import EmbedderTask
from ratchet.jobs.retrieval.reranker_training import RerankerTask
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.orchestrator.job_interface import Resources


def make_task(kind: str, concepts: Path, folder: Path) -> Any:
    worker, resources = WorkerInfo(0, 1, "cpu"), Resources(1, cpus=1.0, gpus=0.0)
    if kind == "embedder":
        parts = [concepts / name for name in ("base", "mined", "corpus", "valid")]
        config = replace(embedder_finetuning.FAST, batch_size=4)
        return EmbedderTask(worker, config, finetune_embedder.Inputs(*parts), resources)
    inputs = reranker_finetuning.make_inputs(concepts, folder)
    return RerankerTask(worker, replace(reranker_finetuning.FAST, batch_size=4), inputs, resources)


@pytest.mark.parametrize(("kind", "name"), [("embedder", "encode"), ("reranker", "score")])
def test_no_evaluation_tokenizes_while_a_step_is_prepared(
    concepts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    """A tokenizer of transformers keeps its truncation: of 300 calls of two threads, 39 got that of the other one."""
    task = make_task(kind, concepts, tmp_path)
    order: list[str] = []
    prepare = task.prepare

    def prepare_slowly(epoch: int, step: int) -> Any:
        time.sleep(0.5 * step)
        made = prepare(epoch, step)
        order.append(f"prepared {step} in {threading.current_thread() is threading.main_thread()}")
        return made

    model = type(task.encoder if kind == "embedder" else task.reranker)
    compute = getattr(model, name)

    def compute_and_note(self: Any, *given: Any, **options: Any) -> Any:
        order.append("evaluates")
        return compute(self, *given, **options)

    monkeypatch.setattr(task, "prepare", prepare_slowly)
    monkeypatch.setattr(model, name, compute_and_note)
    task.batch(0, 0)
    task.evaluate()
    assert order[:3] == ["prepared 0 in True", "prepared 1 in False", "evaluates"]
    assert task.batch(0, 1).num_tokens > 0
    assert order.count("prepared 1 in False") == 1, "and what was prepared is used"
