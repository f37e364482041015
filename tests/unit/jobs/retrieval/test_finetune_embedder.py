"""The embedder's finetuning without a cluster: prompts with examples, and settings that cannot work."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reranker_finetuning
import torch
import transformers
from architectures import make
from embedder_finetuning import FAST, SHOWN, write_examples
from torch import Tensor

from ratchet.data.evaluation_pool import choose_pool
from ratchet.data.tables import read_shards, write_table
from ratchet.errors import InputError
from ratchet.jobs.retrieval.embedder_training import EmbedderTask
from ratchet.jobs.retrieval.finetune_embedder import JOB, Config, Inputs, check
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models import loading
from ratchet.models.embedder import encoder
from ratchet.orchestrator.job_interface import Resources, Result
from ratchet.orchestrator.job_interface.settings import validate


@pytest.fixture(scope="module")
def inputs(concepts: Path) -> Inputs:
    return Inputs(concepts / "base", concepts / "mined", concepts / "corpus", concepts / "valid")


def test_examples_do_not_tell_the_answer(inputs: Inputs, tmp_path: Path) -> None:
    inputs = dataclasses.replace(inputs, examples=write_examples(tmp_path))
    task = EmbedderTask(WorkerInfo(0, 1, "cpu"), SHOWN, inputs, Resources(1, cpus=1.0, gpus=0.0))
    tokenizer, data = task.encoder.tokenizer, task.triplets
    seen = []
    for epoch in range(2):
        batch = data.batch(epoch, 0)
        rows = task.prepare(epoch, 0).ids_R[: len(batch.query_Q)]
        for query, row in zip(batch.query_Q.tolist(), rows, strict=True):
            words = tokenizer.decode(row, skip_special_tokens=True).split()
            parts = " ".join(words).split("t0x7 ")[1:]
            *examples, own = [part.split("t1x7") for part in parts]
            assert own[0].split() == data.query_text[query].as_py().split()[:6]
            answers = {data.corpus_text[int(p)].as_py() for p in data.positives(query)}
            for text, answer in examples:
                assert " ".join(text.split()) != data.query_text[query].as_py()
                assert answer.split()
                assert not any(
                    " ".join(right.split()[:5]) == " ".join(answer.split()) for right in answers
                )
            seen.append(len(examples))
    assert set(seen) == {0, 1, 2, 3}
    agreed = task.encoder.encoding_config
    assert [text for text, _ in agreed.examples] == ["q1x1 q1x2", "q2x1 q2x2"]
    fixed = tokenizer.decode(task.encoder.tokenize(["q1x1"], "query")[0], skip_special_tokens=True)
    assert fixed.count("t0x7") == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"learning_rate": 0.0}, "learning_rate: 0.0 given"),
        ({"temperature": -1.0}, "temperature: -1.0 given"),
        ({"batch_size": 1}, "batch_size: 1 given"),
        ({"lr_scheduler_type": "cosin"}, "one of cosine, linear, constant"),
        ({"zero_stage": 4}, "zero_stage: 4 given"),
        ({"zero_stage": 3, "quantization": "nf4"}, "2 or less with nf4"),
        ({"num_negatives": -1}, "num_negatives: -1 given"),
        (
            {"num_negatives": 0, "in_batch_negatives": False},
            "1 or more where in_batch_negatives is off",
        ),
        ({"metric": "accuracy"}, "metric: accuracy given"),
        ({"epochs": 0}, "epochs: 0 given"),
        ({"method": "full", "quantization": "nf4"}, "method: full given; expected lora with nf4"),
        (
            {"matryoshka_dims": (16, 8)},
            "16,8 given; expected rising numbers below the 32 dimensions",
        ),
        (
            {"matryoshka_dims": (8, 32)},
            "8,32 given; expected rising numbers below the 32 dimensions",
        ),
        ({"lora_dropout": 1.0}, "lora_dropout: 1.0 given"),
        (
            {"task": "Find it."},
            "task: 'Find it.' given, but no template has {task}; expected query_template with it",
        ),
        (
            {"task": "Find it.", "query_template": "Q: {text}"},
            "task: 'Find it.' given, but no template has {task}",
        ),
        (
            {"num_examples": 3},
            "num_examples: 3 given, of up to 256 tokens each, with a max_length of 64, of which examples may take half",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    change: dict[str, Any], says: str, inputs: Inputs
) -> None:
    with pytest.raises(InputError, match=says):
        check(validate(Config, change, "finetune_embedder"), inputs, {})


def test_a_task_that_a_template_uses_is_accepted(inputs: Inputs, tmp_path: Path) -> None:
    folder = make(
        "bert", transformers.AutoModel, tmp_path, inputs.base, vocab_size=300
    )  # with room for examples
    inputs = dataclasses.replace(inputs, base=folder)
    for change in ({"query_template": "{task} {text}"}, {"num_examples": 1, "max_length": 512}):
        check(validate(Config, {"task": "Find it.", **change}, "finetune_embedder"), inputs, {})


def test_a_base_without_weights_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    from ratchet.errors import ModelError

    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ModelError, match="no tokenizer"):
        check(Config(), dataclasses.replace(inputs, base=tmp_path), {})
    check(Config(), Inputs(None, None, None, None), {})  # type: ignore[arg-type]  # not made yet


def test_more_workers_than_queries_are_refused_with_the_fix(inputs: Inputs, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"workers: 3 given.*lower workers, or raise batch"):
        EmbedderTask(
            WorkerInfo(0, 3, "cpu"),
            dataclasses.replace(FAST, batch_size=2),
            inputs,
            Resources(3, 1.0, 0.0),
        )


def collect_gradients(
    config: Config, inputs: Inputs, micro_batch_size: int | None
) -> tuple[int, float, list[Tensor]]:
    """Return (number of parts, loss, gradients) of a training step on one worker."""
    resources = Resources(1, cpus=1.0, gpus=0.0, micro_batch_size=micro_batch_size)
    task = EmbedderTask(WorkerInfo(0, 1, "cpu"), config, inputs, resources)
    parts, loss = task.batch(0, 0).microbatches, 0.0
    for part in parts:
        share = task.loss(part)
        share.backward()
        loss += float(share.detach())
    return (
        len(parts),
        loss,
        [weight.grad for weight in task.model.parameters() if weight.grad is not None],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_negatives": 0},
        {"in_batch_negatives": False, "label_smoothing": 0.1},
        {"method": "full", "matryoshka_dims": (4, 16)},
        {"distillation": "kl_div"},
        {"distillation": "m3_kd_loss", "gradient_checkpointing": True},
    ],
)
def test_micro_batches_give_the_gradient_of_the_whole_batch(
    change: dict[str, Any], inputs: Inputs, concepts: Path, tmp_path: Path
) -> None:
    config = dataclasses.replace(FAST, dtype="float32", **change)
    if config.distillation != "none":
        inputs = dataclasses.replace(
            inputs, mined=reranker_finetuning.make_inputs(concepts, tmp_path).mined
        )
    one, loss, expected = collect_gradients(config, inputs, None)
    several, again, found = collect_gradients(config, inputs, 3)
    assert (one, several > 4) == (1, True)
    assert again == pytest.approx(loss, rel=1e-6)
    largest = max(float(gradient.abs().max()) for gradient in expected)
    assert len(found) == len(expected) > 0
    for mine, whole in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, whole, rtol=0, atol=1e-6 * largest)


def test_adapter_and_model_are_told_apart(inputs: Inputs, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="given; expected a whole model with method=full"):
        check(Config(method="full"), dataclasses.replace(inputs, current_best=tmp_path), {})
    with pytest.raises(InputError, match="given; expected an adapter of the base with method=lora"):
        check(Config(), dataclasses.replace(inputs, current_best=inputs.base), {})


def test_few_dimensions_are_trained_as_vectors_of_their_own(inputs: Inputs) -> None:
    """Against the loss of each number of dimensions by itself."""
    config = dataclasses.replace(FAST, matryoshka_dims=(4, 16))
    task = EmbedderTask(WorkerInfo(0, 1, "cpu"), config, inputs, Resources(1, cpus=1.0, gpus=0.0))
    loss = float(task.loss(task.batch(0, 0).microbatches[0]).detach())
    data, expected = task.triplets, []
    queries = data.split_epoch(0)[0]
    drawn = [data.draw(0, int(query)) for query in queries]
    texts = data.corpus_text.to_pylist()
    passages = sorted({texts[row] for right, wrong in drawn for row in [right, *wrong]})
    with torch.no_grad():
        query_QD = torch.from_numpy(
            task.encoder.encode(data.query_text.take(queries).to_pylist(), "query")
        )
        passage_PD = torch.from_numpy(task.encoder.encode(passages, "passage"))
    for dim in (4, 16, 32):
        cut = [
            torch.nn.functional.normalize(vectors[:, :dim], dim=1)
            for vectors in (query_QD, passage_PD)
        ]
        score_QP = cut[0] @ cut[1].T / config.temperature
        for i, query in enumerate(queries):
            known = {texts[row] for row in data.positives(int(query))}
            right = texts[drawn[i][0]]
            columns = [j for j, text in enumerate(passages) if text == right or text not in known]
            expected.append(
                -torch.log_softmax(score_QP[i, columns], 0)[columns.index(passages.index(right))]
            )
    assert loss == pytest.approx(float(torch.stack(expected).mean()), rel=1e-5)


def test_what_mining_suspects_is_no_negative_of_the_query(inputs: Inputs, tmp_path: Path) -> None:
    mined = read_shards(inputs.mined)
    ids = read_shards(inputs.corpus)["id"].to_pylist()
    suspects = [[ids[(q + 3) % len(ids)], ids[(q + 5) % len(ids)]] for q in range(len(mined))]
    write_table(tmp_path / "shard-00000.parquet", mined.append_column("suspects", [suspects]))
    config = dataclasses.replace(FAST, num_negatives=1)
    task = EmbedderTask(
        WorkerInfo(0, 1, "cpu"),
        config,
        dataclasses.replace(inputs, mined=tmp_path),
        Resources(1, cpus=1.0, gpus=0.0),
    )
    batch, data, masked = task.prepare(0, 0), task.triplets, 0
    made = data.batch(0, 0)
    assert batch.mask_QP is not None
    for i, query in enumerate(made.query_Q.tolist()):
        never = {*data.positives(query).tolist(), *(ids.index(name) for name in suspects[query])}
        texts = {data.text_of_row[row] for row in never}
        for p, row in enumerate(made.passage_P.tolist()):
            expected = data.text_of_row[row] in texts and p != made.own_Q[i][0]
            assert bool(batch.mask_QP[i, p]) == expected
            masked += expected
    assert masked > len(made.query_Q) / 2


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_current_best_over_the_trained_base(
    inputs: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: str
) -> None:
    """The base is loaded once. The adapter that is trained is as before afterwards."""
    resources = Resources(1, cpus=1.0, gpus=0.0)
    config = dataclasses.replace(FAST, quantization=quantization, lora_r=4)
    best = EmbedderTask(
        WorkerInfo(0, 1, "cpu"), dataclasses.replace(config, lora_r=8), inputs, resources
    )
    with torch.no_grad():
        for name, weight in best.model.named_parameters():
            if "lora_B" in name:
                weight.copy_(
                    torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) / 3
                )
    best.save(tmp_path)
    expected, own = best.evaluate().metrics, None
    loaded: list[str] = []
    open_model = loading.open_model
    monkeypatch.setattr(
        encoder, "open_model", lambda *a, **k: loaded.append("base") or open_model(*a, **k)
    )
    task = EmbedderTask(
        WorkerInfo(0, 1, "cpu"),
        config,
        dataclasses.replace(inputs, current_best=tmp_path),
        resources,
    )
    before = {
        name: (weight.requires_grad, weight.clone())
        for name, weight in task.model.named_parameters()
    }
    own = task.evaluate().metrics
    assert task.evaluate_start().metrics == pytest.approx(expected, abs=1e-6)
    assert expected != own
    assert task.evaluate().metrics == own
    assert loaded == ["base"]
    after = dict(task.model.named_parameters())
    assert before.keys() == after.keys()
    for name, (trained, weight) in before.items():
        assert after[name].requires_grad == trained
        assert torch.equal(after[name], weight)


@pytest.mark.slow
def test_held_out_queries_are_ranked_against_the_pool(inputs: Inputs, tmp_path: Path) -> None:
    """As by brute force over the documents of the pool alone; a pool of all documents gives what no pool gives."""
    worker, resources = WorkerInfo(0, 1, "cpu"), Resources(1, cpus=1.0, gpus=0.0)
    corpus, valid = read_shards(inputs.corpus), read_shards(inputs.valid).slice(0, 5)  # type: ignore[arg-type]
    write_table(tmp_path / "shard-00000.parquet", valid)
    inputs = dataclasses.replace(inputs, valid=tmp_path)
    rows = choose_pool(valid, corpus, None, 8, seed=0)
    assert rows is not None
    task = EmbedderTask(worker, FAST, inputs, resources, rows)
    vector_ND = task.encoder.encode(corpus["text"].take(rows).to_pylist(), "passage")
    score_QN = task.encoder.encode(valid["text"].to_pylist(), "query") @ vector_ND.T
    names, total = corpus["id"].take(rows).to_pylist(), 0.0
    for own, positives in zip(score_QN, valid["positives"].to_pylist(), strict=True):
        order = [names[i] for i in np.argsort(-own, kind="stable")]
        places = sorted(order.index(name) + 1 for name in positives)
        total += sum((n + 1) / place for n, place in enumerate(places)) / len(places)
    pooled = task.evaluate().metrics["map@25"]
    assert pooled == pytest.approx(total / len(valid), abs=1e-5)
    whole = EmbedderTask(worker, FAST, inputs, resources).evaluate().metrics["map@25"]
    assert (
        EmbedderTask(worker, FAST, inputs, resources, np.arange(len(corpus)))
        .evaluate()
        .metrics["map@25"]
        == whole
    )
    assert whole < pooled


def test_a_ranking_without_held_out_queries_is_refused(inputs: Inputs) -> None:
    assert JOB.check
    given = dataclasses.replace(inputs, valid=None, ranking=inputs.mined)
    with pytest.raises(InputError, match="finetune_embedder: ranking given, without valid"):
        JOB.check(FAST, given, {})


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"folds": 14}, "folds: 14 given; expected at most 13, the training queries"),
        ({"folds": 3, "patience": 1}, "patience: 1 given; expected none"),
        ({"folds": 3, "eval_steps": 1}, "folds: 3 given; expected none where keep, patience"),
        ({"folds": 3, "keep": "last"}, "folds: 3 given; expected none where keep, patience"),
    ],
)
def test_folds_that_cannot_decide_are_refused(
    inputs: Inputs, values: dict[str, Any], said: str
) -> None:
    given = dataclasses.replace(inputs, valid=None)
    with pytest.raises(InputError, match=said):
        check(Config(**values), given, {"mined": Result({"queries": 13})})
    with pytest.raises(InputError, match="folds: 3 given; expected none with valid or a current"):
        check(Config(folds=3), inputs, {})
    check(Config(folds=13), given, {"mined": Result({"queries": 13})})
