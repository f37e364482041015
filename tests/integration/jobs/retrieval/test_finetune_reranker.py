"""Finetuning of rerankers: a tiny BERT against plain torch, with a teacher, and a tiny decoder on two workers."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reranker_finetuning import DECODER, FAST, context, losses, make_inputs
from step_process import run_step

from ratchet.data.tables import CORPUS, RANKED, read_shards, write_shards
from ratchet.data.triplets import Triplets
from ratchet.jobs.comparison import choose_checkpoint
from ratchet.jobs.retrieval import finetune_reranker
from ratchet.jobs.retrieval.finetune_reranker import Inputs, check
from ratchet.jobs.training import teacher_gate
from ratchet.jobs.training.schedule import learning_rate_at
from ratchet.orchestrator.job_interface import Result


@pytest.fixture(scope="module")
def inputs(concepts: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(concepts, tmp_path_factory.mktemp("reranker"))


@pytest.fixture(scope="module")
def tuned(
    local_ray: None, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("tuned")
    config = dataclasses.replace(FAST, distillation="kl_div", label_smoothing=0.2)
    check(config, inputs, {})
    return run_step(
        finetune_reranker.run, context(folder), config, inputs
    ), folder / "out" / "adapter"


def test_training_is_what_plain_torch_and_peft_do(
    tuned: tuple[Result, Path], inputs: Inputs
) -> None:
    """The same batches, one pair at a time, no parts, DeepSpeed or Ray; the loss written out."""
    from ratchet.models.adapters import lora
    from ratchet.models.reranker import reranker

    config = dataclasses.replace(FAST, label_smoothing=0.2)
    size = {
        "seed": config.seed,
        "batch_size": config.batch_size,
        "num_negatives": config.num_negatives,
    }
    data = Triplets(
        read_shards(inputs.mined), read_shards(inputs.corpus, CORPUS.names), teacher=True, **size
    )
    ours = reranker.load(
        inputs.base, dtype="float32", device="cpu", training=True, seed=config.seed
    )
    head = reranker.find_heads(ours)
    assert head == ["bert.pooler.dense", "classifier"], "the tiny BERT has no pooler either"
    sizes: dict[str, Any] = {
        "lora_r": config.lora_r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": 0.0,
    }
    sizes["target_modules"] = "all-linear"
    ours.model = model = lora.attach(
        ours.model, **sizes, seed=config.seed, modules_to_save=head, task="SEQ_CLS"
    )
    weights = [p for p in model.parameters() if p.requires_grad]
    vectors = [one for one in weights if one.ndim == 1]
    matrices = [one for one in weights if one.ndim > 1]
    optimizer = torch.optim.AdamW(
        [{"params": vectors, "weight_decay": 0.0}, {"params": matrices}], weight_decay=0.01
    )
    names = ("teacher_positive_scores", "teacher_negative_scores")
    scores = [
        [statistics.fmean(row[name]) for name in names]
        for row in read_shards(inputs.mined).to_pylist()
    ]
    temperature = statistics.fmean(right - wrong for right, wrong in scores) / 4
    found: list[float] = []
    total_steps = config.epochs * data.num_batches
    for epoch in range(2):
        for number in range(data.num_batches):
            step = data.batch(epoch, number)
            assert step.teacher_Q is not None
            total = torch.zeros(())
            for query, own, teacher in zip(step.query_Q, step.own_Q, step.teacher_Q, strict=True):
                texts = [data.corpus_text[int(row)].as_py() for row in step.passage_P[own]]
                rows = ours.tokenize([data.query_text[int(query)].as_py()], [texts])
                log_G = torch.log_softmax(torch.cat([ours.forward([row]) for row in rows]), 0)
                smooth_G = torch.full((len(own),), 0.2 / len(own))
                smooth_G[0] += 0.8
                total = (
                    total
                    - (
                        log_G
                        * (smooth_G + torch.softmax(torch.from_numpy(teacher) / temperature, 0))
                    ).sum()
                )
            loss = total / step.queries
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(len(found), total_steps, config)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            found.append(float(loss.detach()))
    assert losses(tuned[0])[: len(found)] == pytest.approx(found, rel=1e-3)


def test_it_learns_and_the_kept_adapter_is_what_the_table_says(
    tuned: tuple[Result, Path], inputs: Inputs
) -> None:
    from ratchet.models.reranker import reranker

    result, adapter = tuned
    ours = reranker.load(inputs.base, adapter, dtype="float32", device="cpu")
    text_of = {row["id"]: row["text"] for row in read_shards(inputs.corpus).to_pylist()}
    lists, valid = read_shards(inputs.ranking).to_pylist(), read_shards(inputs.valid).to_pylist()
    scores = ours.score(
        [row["text"] for row in lists], [[text_of[n] for n in row["documents"]] for row in lists]
    )
    found = []
    for row, query, own in zip(lists, valid, scores, strict=True):
        order = [row["documents"][i] for i in np.argsort(-own, kind="stable")]
        hits = sorted(order.index(name) + 1 for name in query["positives"])
        found.append(np.mean([number / rank for number, rank in enumerate(hits, 1)]))
    rows = result.tables["epochs"]
    assert all(row["valid/eval_loss"] > 0 for row in rows[1:])
    assert rows[0]["valid/eval_loss"] is None, "the new head was not evaluated"
    best = next(row for row in rows if row["best"])
    assert best["valid/map@25"] == pytest.approx(float(np.mean(found)), abs=2e-3)
    assert result.metrics["improved"]
    before = [
        np.mean([n / rank if rank <= 25 else 0 for n, rank in enumerate(sorted(row["ranks"]), 1)])
        for row in lists
    ]
    gate = teacher_gate.read(adapter.parent / "teacher_gate")
    lead = np.array(found) - np.array(before)
    flips = np.random.default_rng(1).choice([-1, 1], (10_000, len(lead)))
    alone = float(
        ((flips @ lead) >= lead.sum() - 1e-9).mean()
    )  # not corrected for the choice of the epoch
    assert alone - 0.01 <= gate.p_value <= 8 * alone + 0.01
    assert (gate.before, gate.after) == pytest.approx(
        (np.mean(before), result.metrics["valid/map@25"]), abs=1e-6
    )
    assert result.metrics["valid/map@25"] > result.metrics["valid/map@25_start"] + 0.05
    with pytest.raises(Exception, match="weights are missing"):
        reranker.load(inputs.base, dtype="float32", device="cpu")


def test_each_epoch_that_is_kept_has_its_own_gate(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    config = dataclasses.replace(FAST, epochs=2, keep="all", eval_fraction=0.5)
    result = run_step(finetune_reranker.run, context(tmp_path), config, inputs)
    folder = tmp_path / "out" / "teacher_gate"
    gates = [teacher_gate.read(folder / f"epoch-{number}") for number in (1, 2)]
    rows = result.tables["epochs"]
    assert [gate.after for gate in gates] == [row["valid/map@25"] for row in rows[1:]]
    assert {gate.before for gate in gates} == {rows[0]["valid/map@25"]}
    best = int(str(result.metrics["best_epoch"]))
    assert teacher_gate.read(folder) == gates[best - 1]
    other = 3 - best
    own = context(tmp_path / "chosen")
    choose_checkpoint.run(
        own, choose_checkpoint.Config(other), choose_checkpoint.Inputs(tmp_path / "out")
    )
    assert teacher_gate.read(own.out / "teacher_gate") == gates[other - 1]
    assert [path.name for path in (own.out / "teacher_gate").iterdir()] == [teacher_gate.NAME]


def test_unhelpful_fresh_head_is_kept(local_ray: None, inputs: Inputs, tmp_path: Path) -> None:
    perfect = read_shards(inputs.ranking).to_pylist()
    for row, query in zip(perfect, read_shards(inputs.valid).to_pylist(), strict=True):
        row["documents"] = query["positives"] + [
            n for n in row["documents"] if n not in query["positives"]
        ]
        row["ranks"] = list(range(1, 1 + len(query["positives"])))
    write_shards(tmp_path / "ranking", perfect, RANKED, 50)
    still = dataclasses.replace(FAST, epochs=1, learning_rate=1e-9)
    result = run_step(
        finetune_reranker.run,
        context(tmp_path),
        still,
        dataclasses.replace(inputs, ranking=tmp_path / "ranking"),
    )
    assert result.metrics["valid/map@25_start"] == 1.0
    assert result.metrics["improved"] is False
    assert result.metrics["kept"] == "epoch 1"
    assert result.metrics["valid/map@25"] < 1.0
    assert not teacher_gate.read(tmp_path / "out" / "teacher_gate").is_open


@pytest.fixture(scope="module")
def decoder(
    local_ray: None, inputs: Inputs, tiny_decoder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    """Yes or No, on two workers."""
    folder, given = (
        tmp_path_factory.mktemp("yes-no"),
        dataclasses.replace(inputs, base=tiny_decoder),
    )
    check(DECODER, given, {})
    return run_step(
        finetune_reranker.run, context(folder, workers=2), DECODER, given
    ), folder / "out/adapter"


@pytest.mark.soak
def test_decoder_learns_and_loads_in_peft(
    decoder: tuple[Result, Path], tiny_decoder: Path, tmp_path: Path
) -> None:
    from peft import AutoPeftModelForCausalLM

    from ratchet.models.reranker.reranker_config import YES_NO, read_reranker_config

    found, adapter = losses(decoder[0]), tmp_path / "adapter"
    assert np.mean(found[-3:]) < np.mean(found[:3]) - 0.02
    shutil.copytree(decoder[1], adapter)
    assert read_reranker_config(adapter) == dataclasses.replace(YES_NO, max_length=256)
    settings = adapter / "adapter_config.json"
    named = json.loads(settings.read_text()) | {"base_model_name_or_path": str(tiny_decoder)}
    settings.write_text(json.dumps(named))
    model = AutoPeftModelForCausalLM.from_pretrained(adapter)
    assert any("lora_B" in name and bool(weight.any()) for name, weight in model.named_parameters())


def test_last_epoch_without_held_out_lists(local_ray: None, inputs: Inputs, tmp_path: Path) -> None:
    everything = dataclasses.replace(inputs, valid=None, ranking=None)
    for setting, answer in (("tested", "no"), ("open", "yes, by the setting teacher_gate=open")):
        config: Any = dataclasses.replace(
            FAST, epochs=1 + (setting == "tested"), teacher_gate=setting, keep="all"
        )
        folder = tmp_path / setting
        result = run_step(finetune_reranker.run, context(folder), config, everything)
        assert result.metrics["kept"] == f"epoch {config.epochs}"
        said = f"{answer}: nothing is held out, nothing was compared"
        assert result.metrics["teacher_gate"] == said
        assert result.note.startswith("kept the last epoch")
        gate = teacher_gate.read(folder / "out" / "teacher_gate")
        assert gate.is_open == (setting == "open")
        own = context(tmp_path / f"{setting}-chosen")
        choose_checkpoint.run(
            own, choose_checkpoint.Config(1), choose_checkpoint.Inputs(folder / "out")
        )
        assert teacher_gate.read(own.out / "teacher_gate") == gate
    with pytest.raises(Exception, match="one of valid and ranking given; expected both or none"):
        run_step(
            finetune_reranker.run,
            context(tmp_path / "half"),
            FAST,
            dataclasses.replace(inputs, valid=None),
        )
