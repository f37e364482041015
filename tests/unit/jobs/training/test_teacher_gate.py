"""The consequences of a refused teacher, and the temperature of a teacher's scores."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from store_contents import made_of

from ratchet.jobs.retrieval import finetune_embedder, finetune_reranker
from ratchet.jobs.retrieval.finetune_embedder import Config
from ratchet.jobs.training.teacher_gate import find_teacher_temperature
from ratchet.models.model_files import MINILM, resolve
from ratchet.orchestrator.finished_run import find_run, use_store
from ratchet.orchestrator.job_interface import Job, Source
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import step
from ratchet.orchestrator.store import Store


@pytest.mark.slow
@pytest.mark.parametrize("job", [finetune_embedder.JOB, finetune_reranker.JOB])
@pytest.mark.parametrize("refused", [True, False])
def test_a_finetune_with_a_refused_teacher_is_the_one_without(job: Job, refused: bool, tmp_path: Path) -> None:
    store, files = Store.open(tmp_path), {"shard-00000.parquet": "lists"}
    gate: dict[str, Any] = {"teacher_gate": "no: worse"} if refused else {}
    made = {"mined": made_of(store, "mined", files), "scored": made_of(store, "scored", files, **gate)}
    run_log = RunLog.begin(store, "toy", {})
    rows = [{"name": name, "step_id": one.step_id, "object": one.manifest} for name, one in made.items()]
    run_log.write("plan.json", {"recipe": "toy", "steps": rows})
    with use_store(store):
        mined, scored = (find_run(run_log.run_id).step(name) for name in made)
        same = {"base": Source(resolve(MINILM)), "corpus": mined}
        alone = step("alone", job, mined=mined, **same)
        taught = step("taught", job, mined=scored, distillation="kl_div", **same)
        plan = Plan([mined, scored, alone, taught], store)
    found = plan.steps["taught"]
    assert found.step.config.distillation == ("none" if refused else "kl_div"), "what runs, and what is shown"
    assert (found.step_id == plan.steps["alone"].step_id) == refused


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_scale_of_a_teacher_does_not_matter(scale: float) -> None:
    teacher_QG = torch.tensor([[3.0, 1.0, -2.0], [5.0, 0.5, 4.0]])
    margin = float((teacher_QG[:, :1] - teacher_QG[:, 1:]).mean())
    triplets: Any = SimpleNamespace(teacher_margin=scale * margin)
    found = find_teacher_temperature(Config(distillation="kl_div"), triplets)
    expected = torch.softmax(teacher_QG * 4 / margin, dim=1)
    torch.testing.assert_close(torch.softmax(scale * teacher_QG / found, dim=1), expected)


def test_a_temperature_that_is_given_is_kept() -> None:
    triplets: Any = SimpleNamespace(teacher_margin=8.0)
    assert find_teacher_temperature(Config(distillation="kl_div", teacher_temperature=3.0), triplets) == 3.0
    assert find_teacher_temperature(Config(), SimpleNamespace()) == 1.0, "labels alone"  # type: ignore[arg-type]
