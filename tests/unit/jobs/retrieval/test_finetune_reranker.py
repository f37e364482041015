"""The reranker's gradients over workers and micro batches, and input that cannot work."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import transformers
from reranker_finetuning import FAST, make_inputs

from ratchet.data.tables import MINED, RANKED, read_shards, write_shards, write_table
from ratchet.errors import InputError
from ratchet.jobs.retrieval.finetune_reranker import Config, Inputs, check
from ratchet.jobs.retrieval.reranker_training import RerankerTask
from ratchet.jobs.training.finetuning import _keep_start
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models import loading
from ratchet.models.model_files import copy_tokenizer
from ratchet.models.reranker import reranker
from ratchet.orchestrator.job_interface import Resources
from ratchet.orchestrator.job_interface.settings import validate


@pytest.fixture(scope="module")
def inputs(concepts: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(concepts, tmp_path_factory.mktemp("reranker"))


@pytest.mark.slow
def test_the_base_that_is_kept_has_its_own_head(inputs: Inputs, tmp_path: Path) -> None:
    torch.manual_seed(3)
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        inputs.base, num_labels=1
    )
    base.save_pretrained(tmp_path / "base")
    copy_tokenizer(inputs.base, tmp_path / "base")
    given = dataclasses.replace(inputs, base=tmp_path / "base")
    assert reranker.can_score(given.base)
    task = RerankerTask(WorkerInfo(0, 1, "cpu"), FAST, given, Resources(1, cpus=1.0, gpus=0.0))
    with torch.no_grad():
        for weight in task.model.parameters():
            weight += weight.requires_grad * 0.1
    task.save(tmp_path / "adapter")
    _keep_start(FAST, given, tmp_path / "adapter")
    asked: Any = (["a query"] * 2, [["a passage"], ["another one"]])
    kept, own = (
        reranker.load(given.base, one, dtype="float32", device="cpu")
        for one in (tmp_path / "adapter", None)
    )
    assert [float(one[0]) for one in kept.score(*asked)] == pytest.approx(
        [float(one[0]) for one in own.score(*asked)]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "micro_batch_size"), [(2, None), (4, 3), (1, 2)])
def test_workers_and_parts_change_nothing(
    inputs: Inputs, workers: int, micro_batch_size: int | None
) -> None:
    config = dataclasses.replace(FAST, distillation="kl_div", label_smoothing=0.2)

    def gradient(
        workers: int, micro_batch_size: int | None
    ) -> tuple[float, dict[str, torch.Tensor]]:
        """Return the mean over the workers of a step, which run one after the other."""
        total, sums = 0.0, dict[str, torch.Tensor]()
        for rank in range(workers):
            share = Resources(workers, cpus=1.0, gpus=0.0, micro_batch_size=micro_batch_size)
            one = RerankerTask(WorkerInfo(rank, workers, "cpu"), config, inputs, share)
            for microbatch in one.batch(0, 1).microbatches:
                loss = one.loss(microbatch)
                loss.backward()
                total += float(loss.detach()) / workers
            for name, weight in one.model.named_parameters():
                if weight.grad is not None:
                    sums[name] = sums.get(name, torch.zeros(())) + weight.grad / workers
        return total, sums

    loss, expected = gradient(1, None)
    other, found = gradient(workers, micro_batch_size)
    assert other == pytest.approx(loss, rel=1e-5)
    scale = max(float(value.abs().max()) for value in expected.values())
    assert scale > 0
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5 * scale, msg=name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_negatives": 0}, "finetune_reranker.num_negatives: 0 given; expected >= 1"),
        ({"depth": 1}, "depth: 1 given"),
        (
            {"distillation": "kl"},
            "distillation: 'kl' given; expected one of none, kl_div, m3_kd_loss",
        ),
        ({"teacher_temperature": 0.0}, "teacher_temperature: 0.0 given"),
        ({"query_max_length": 600}, "query_max_length: 600 given; expected 1 up to below"),
    ],
)
def test_wrong_settings_are_named(inputs: Inputs, change: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        check(validate(Config, {**vars(FAST), **change}, "finetune_reranker"), inputs, {})


def test_a_teacher_without_scores_and_other_lists_are_named(inputs: Inputs, tmp_path: Path) -> None:
    def made(config: Config, inputs: Inputs) -> None:
        RerankerTask(WorkerInfo(0, 1, "cpu"), config, inputs, Resources(1, cpus=1.0, gpus=0.0))

    plain = read_shards(inputs.mined).select(MINED.names)
    write_table(tmp_path / "mined" / "shard-00000.parquet", plain)
    config = dataclasses.replace(FAST, distillation="m3_kd_loss")
    with pytest.raises(Exception, match="has no column teacher_positive_scores"):
        made(config, dataclasses.replace(inputs, mined=tmp_path / "mined"))
    write_shards(tmp_path / "ranking", read_shards(inputs.ranking).to_pylist()[:-1], RANKED, 50)
    with pytest.raises(InputError, match="rows of other queries"):
        made(FAST, dataclasses.replace(inputs, ranking=tmp_path / "ranking"))
    empty = plain.set_column(
        3, "negatives", pa.array([[]] * len(plain), MINED.field("negatives").type)
    )
    write_table(tmp_path / "bare" / "shard-00000.parquet", empty)
    with pytest.raises(InputError, match="no query has a negative"):
        made(FAST, dataclasses.replace(inputs, mined=tmp_path / "bare"))


@pytest.mark.slow
def test_current_best_over_the_trained_base(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base is loaded once. Its new head is that of the current best while that is measured."""
    resources = Resources(1, cpus=1.0, gpus=0.0)
    best = RerankerTask(
        WorkerInfo(0, 1, "cpu"), dataclasses.replace(FAST, lora_r=8, seed=5), inputs, resources
    )
    with torch.no_grad():
        for weight in best.model.parameters():
            if weight.requires_grad:
                weight.add_(
                    torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) / 5
                )
    best.save(tmp_path)
    expected = best.evaluate().metrics
    loaded: list[str] = []
    open_model = loading.open_model
    monkeypatch.setattr(
        reranker, "open_model", lambda *a, **k: loaded.append("base") or open_model(*a, **k)
    )
    current = dataclasses.replace(inputs, current_best=tmp_path)
    task = RerankerTask(WorkerInfo(0, 1, "cpu"), FAST, current, resources)
    own = task.evaluate().metrics
    assert task.evaluate_start().metrics == pytest.approx(expected, abs=1e-6)
    assert task.evaluate().metrics == own != expected
    assert loaded == ["base"]
