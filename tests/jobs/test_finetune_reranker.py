"""The reranker's finetuning: a tiny BERT with a fresh head, against plain torch, with a teacher, over workers."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from data.tables import CORPUS, MINED, RANKED, SCORED, read_shards, write_shards, write_table
from data.triplets import Triplets
from jobs import standing
from jobs.finetune_reranker import Config, Inputs, Trainee, check, run
from jobs.job import BadInput, Context, Resources, Result
from jobs.optimization import Options, rate
from jobs.trainee import Place

FAST = Config(epochs=8, batch=16, negatives=3, rank=16, alpha=32.0, learning_rate=1e-2, dtype="float32", seed=3)


@pytest.fixture(scope="module")
def inputs(concepts: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """With a teacher that knows the answers, and held-out lists in an order that has nothing to do with them."""
    folder, random = tmp_path_factory.mktemp("reranker"), np.random.default_rng(1)
    mined = read_shards(concepts / "mined")
    for ids, name in ((i, SCORED[i]) for i in ("positives", "negatives")):
        scores = [[float(5 * (ids == "positives")) + n / 10 for n in range(len(own))] for own in mined[ids].to_pylist()]
        mined = mined.append_column(name, pa.array(scores, pa.list_(pa.float32())))
    write_table(folder / "mined" / "shard-00000.parquet", mined)
    names, rows = read_shards(concepts / "corpus")["id"].to_pylist(), []
    for query in read_shards(concepts / "valid").to_pylist():
        order = [names[i] for i in random.permutation(len(names))]
        ranks = [order.index(name) + 1 for name in query["positives"]]
        scores = [-float(n) for n in range(len(order))]
        rows.append({"id": query["id"], "text": query["text"], "documents": order, "scores": scores, "ranks": ranks})
    write_shards(folder / "ranking", rows, RANKED, 50)
    return Inputs(concepts / "base", folder / "mined", concepts / "corpus", concepts / "valid", folder / "ranking")


def context(folder: Path, workers: int = 1, micro_batch: int | None = None) -> Context:
    for name in ("out", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    resources = Resources(workers, cpus=2 / workers, gpus=0.0, retries=1, micro_batch=micro_batch)
    return Context("tune", "ef" * 32, 1, folder / "out", folder / "work", resources)


def losses(result: Result) -> list[float]:
    return result.curves["loss against step"]["y"]


@pytest.fixture(scope="module")
def tuned(local_ray: None, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("tuned")
    config = dataclasses.replace(FAST, distillation="kl_div", label_smoothing=0.2)
    check(config, inputs)
    return run(context(folder), config, inputs), folder / "out" / "adapter"


def test_training_is_what_plain_torch_and_peft_do(tuned: tuple[Result, Path], inputs: Inputs) -> None:
    """The same batches, one pair at a time, no parts, DeepSpeed or Ray; the loss written out."""
    from models import lora, reranker

    config = dataclasses.replace(FAST, label_smoothing=0.2)
    data = Triplets(read_shards(inputs.mined), read_shards(inputs.corpus, CORPUS.names), teacher=True)
    ours = reranker.load(inputs.base, dtype="float32", device="cpu", training=True, seed=config.seed)
    head = reranker.heads(ours)
    assert head == ["bert.pooler.dense", "classifier"], "the tiny BERT has no pooler either"
    sizes: dict[str, Any] = {"rank": config.rank, "alpha": config.alpha, "dropout": 0.0, "targets": "all-linear"}
    ours.model = model = lora.attach(ours.model, **sizes, seed=config.seed, whole=head, task="SEQ_CLS")
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, weight_decay=0.01)
    names = {field.name for field in dataclasses.fields(Options)}
    options = Options(**{name: value for name, value in vars(config).items() if name in names})
    found: list[float] = []
    total_steps = config.epochs * data.steps(config.batch)
    for epoch in range(config.epochs):
        for number in range(data.steps(config.batch)):
            step = data.step(config.seed, epoch, number, config.batch, config.negatives, 0, 1)
            assert step.teacher_Q is not None
            total = torch.zeros(())
            for query, own, teacher in zip(step.query_Q, step.own_Q, step.teacher_Q, strict=True):
                texts = [data.corpus_text[int(row)].as_py() for row in step.passage_P[own]]
                rows = ours.rows([data.query_text[int(query)].as_py()], [texts])
                log_G = torch.log_softmax(torch.cat([ours.forward([row]) for row in rows]), 0)
                smooth_G = torch.full((len(own),), 0.2 / len(own))
                smooth_G[0] += 0.8
                total = total - (log_G * (smooth_G + torch.softmax(torch.from_numpy(teacher), 0))).sum()
            loss = total / step.queries
            optimizer.param_groups[0]["lr"] = rate(len(found), total_steps, options)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            found.append(float(loss.detach()))
    assert losses(tuned[0]) == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize(("workers", "micro_batch"), [(2, None), (4, 3), (1, 2)])
def test_workers_and_parts_change_nothing(inputs: Inputs, workers: int, micro_batch: int | None) -> None:
    config = dataclasses.replace(FAST, distillation="kl_div", label_smoothing=0.2)

    def gradient(workers: int, micro_batch: int | None) -> tuple[float, dict[str, torch.Tensor]]:
        """Of a step, over workers that run one after the other: the mean of theirs."""
        total, sums = 0.0, dict[str, torch.Tensor]()
        for rank in range(workers):
            share = Resources(workers, cpus=1.0, gpus=0.0, micro_batch=micro_batch)
            one = Trainee(Place(rank, workers, "cpu"), config, inputs, share)
            for part in one.parts(0, 1):
                loss, _ = part()
                loss.backward()
                total += float(loss.detach()) / workers
            for name, weight in one.model.named_parameters():
                if weight.grad is not None:
                    sums[name] = sums.get(name, torch.zeros(())) + weight.grad / workers
        return total, sums

    loss, expected = gradient(1, None)
    other, found = gradient(workers, micro_batch)
    assert other == pytest.approx(loss, rel=1e-5)
    scale = max(float(value.abs().max()) for value in expected.values())
    assert scale > 0
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5 * scale, msg=name)


def test_it_learns_and_the_kept_adapter_is_what_the_table_says(tuned: tuple[Result, Path], inputs: Inputs) -> None:
    from models import reranker

    result, adapter = tuned
    ours = reranker.load(inputs.base, adapter, dtype="float32", device="cpu")
    text_of = {row["id"]: row["text"] for row in read_shards(inputs.corpus).to_pylist()}
    lists, valid = read_shards(inputs.ranking).to_pylist(), read_shards(inputs.valid).to_pylist()
    scores = ours.score([row["text"] for row in lists], [[text_of[n] for n in row["documents"]] for row in lists])
    found = []
    for row, query, own in zip(lists, valid, scores, strict=True):
        order = [row["documents"][i] for i in np.argsort(-own, kind="stable")]
        hits = sorted(order.index(name) + 1 for name in query["positives"])
        found.append(np.mean([number / rank for number, rank in enumerate(hits, 1)]))
    best = next(row for row in result.tables["epochs"] if row["best"])
    assert best["valid map@25"] == pytest.approx(float(np.mean(found)), abs=2e-3)
    assert result.metrics["improved"]
    before = [
        np.mean([n / rank if rank <= 25 else 0 for n, rank in enumerate(sorted(row["ranks"]), 1)]) for row in lists
    ]
    judged = standing.read(adapter.parent / "standing")
    assert judged.p_value == pytest.approx(standing.p_value(before, found), rel=0.2)
    assert (judged.before, judged.after) == pytest.approx((np.mean(before), result.metrics["valid map@25"]), abs=1e-6)
    assert result.metrics["valid map@25"] > result.metrics["valid map@25 at the start"] + 0.05
    with pytest.raises(Exception, match="weights are missing"):
        reranker.load(inputs.base, dtype="float32", device="cpu")


@pytest.mark.slow
def test_a_fresh_head_that_does_not_help_is_kept_and_said_to_be_no_better(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    perfect = read_shards(inputs.ranking).to_pylist()
    for row, query in zip(perfect, read_shards(inputs.valid).to_pylist(), strict=True):
        row["documents"] = query["positives"] + [n for n in row["documents"] if n not in query["positives"]]
        row["ranks"] = list(range(1, 1 + len(query["positives"])))
    write_shards(tmp_path / "ranking", perfect, RANKED, 50)
    still = dataclasses.replace(FAST, epochs=1, learning_rate=1e-9)
    result = run(context(tmp_path), still, dataclasses.replace(inputs, ranking=tmp_path / "ranking"))
    assert result.metrics["valid map@25 at the start"] == 1.0
    assert result.metrics["improved"] is False
    assert result.metrics["kept"] == "epoch 1"
    assert result.metrics["valid map@25"] < 1.0
    assert not standing.read(tmp_path / "out" / "standing").teaches


DECODER = Config(
    epochs=2,
    batch=16,
    negatives=3,
    depth=4,
    learning_rate=2e-3,
    dtype="float32",
    max_length=256,
    distillation="m3_kd_loss",
    allow_regression=True,
)


@pytest.fixture(scope="module")
def decoder(
    local_ray: None, inputs: Inputs, tiny_decoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    """Yes or No, on two workers."""
    folder, given = tmp_path_factory.mktemp("yes-no"), dataclasses.replace(inputs, base=tiny_decoder)
    check(DECODER, given)
    return run(context(folder, workers=2), DECODER, given), folder / "out/adapter"


@pytest.mark.slow
def test_a_decoder_learns_to_answer_and_its_adapter_loads_in_peft(
    decoder: tuple[Result, Path], tiny_decoder: Path, tmp_path: Path
) -> None:
    from peft import AutoPeftModelForCausalLM

    from models import pairs

    found, adapter = losses(decoder[0]), tmp_path / "adapter"
    assert np.mean(found[-3:]) < np.mean(found[:3]) - 0.02
    shutil.copytree(decoder[1], adapter)
    assert pairs.read(adapter) == dataclasses.replace(pairs.YES_NO, max_length=256)
    settings = adapter / "adapter_config.json"
    named = json.loads(settings.read_text()) | {"base_model_name_or_path": str(tiny_decoder)}
    settings.write_text(json.dumps(named))
    model = AutoPeftModelForCausalLM.from_pretrained(adapter)
    assert any("lora_B" in name and bool(weight.any()) for name, weight in model.named_parameters())


@pytest.mark.parametrize(
    ("change", "tolerance"),
    [
        pytest.param({"quantization": "nf4"}, 0.2, marks=pytest.mark.soak, id="4 bits"),
        pytest.param({"zero_stage": 3}, 0.02, marks=pytest.mark.slow, id="weights cut up"),
    ],
)
def test_a_decoder_learns_the_same_in_other_ways(
    decoder: tuple[Result, Path], inputs: Inputs, tiny_decoder: Path, tmp_path: Path, change: Any, tolerance: float
) -> None:
    """Batches of many lengths: with ZeRO-3 workers must keep step."""
    config, given = dataclasses.replace(DECODER, **change), dataclasses.replace(inputs, base=tiny_decoder)
    check(config, given)
    result = run(context(tmp_path, workers=2), config, given)
    assert losses(result) == pytest.approx(losses(decoder[0]), rel=tolerance)
    assert np.mean(losses(result)[-3:]) < np.mean(losses(result)[:3]) - 0.02


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"negatives": 0}, "finetune_reranker.negatives: 0 given; expected 1 or more"),
        ({"depth": 1}, "depth: 1 given"),
        ({"distillation": "kl"}, "distillation: kl given; expected none, kl_div or m3_kd_loss"),
        ({"teacher_temperature": 0.0}, "teacher_temperature: 0.0 given"),
        ({"query_max_length": 600}, "query_max_length: 600 given; expected 1 up to below"),
    ],
)
def test_wrong_settings_are_named(inputs: Inputs, change: dict[str, Any], said: str) -> None:
    with pytest.raises(Exception, match=said):
        check(dataclasses.replace(FAST, **change), inputs)


def test_a_teacher_without_scores_and_other_lists_are_named(inputs: Inputs, tmp_path: Path) -> None:
    def made(config: Config, inputs: Inputs) -> None:
        Trainee(Place(0, 1, "cpu"), config, inputs, Resources(1, cpus=1.0, gpus=0.0))

    plain = read_shards(inputs.mined).select(MINED.names)
    write_table(tmp_path / "mined" / "shard-00000.parquet", plain)
    config = dataclasses.replace(FAST, distillation="m3_kd_loss")
    with pytest.raises(Exception, match="has no column teacher_positive_scores"):
        made(config, dataclasses.replace(inputs, mined=tmp_path / "mined"))
    write_shards(tmp_path / "ranking", read_shards(inputs.ranking).to_pylist()[:-1], RANKED, 50)
    with pytest.raises(BadInput, match="a ranking of other queries"):
        made(FAST, dataclasses.replace(inputs, ranking=tmp_path / "ranking"))
    empty = plain.set_column(3, "negatives", pa.array([[]] * len(plain), MINED.field("negatives").type))
    write_table(tmp_path / "bare" / "shard-00000.parquet", empty)
    with pytest.raises(BadInput, match="no query has a negative"):
        made(FAST, dataclasses.replace(inputs, mined=tmp_path / "bare"))
