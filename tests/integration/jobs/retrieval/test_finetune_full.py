"""Finetuning of all weights: against plain torch with a rate per layer, loaded by other libraries, kept or not."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reranker_finetuning
import torch
from embedder_finetuning import FAST, context, losses
from safetensors.torch import load_file
from step_process import run_step

from ratchet.data.tables import read_shards
from ratchet.jobs.retrieval import finetune_embedder, finetune_reranker
from ratchet.jobs.retrieval.finetune_embedder import Inputs
from ratchet.jobs.training.schedule import learning_rate_at
from ratchet.models.embedder import encoder
from ratchet.models.reranker import reranker
from ratchet.orchestrator.job_interface import Result

FULL = dataclasses.replace(FAST, method="full", learning_rate=2e-3, epochs=3, weight_decay=0.5)


@pytest.fixture(scope="module")
def inputs(concepts: Path) -> Inputs:
    return Inputs(concepts / "base", concepts / "mined", concepts / "corpus", concepts / "valid")


@pytest.fixture(scope="module")
def tuned(
    local_ray: None, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("full")
    return run_step(finetune_embedder.run, context(folder), FULL, inputs), folder / "out/model"


def test_training_is_what_plain_torch_does(tuned: tuple[Result, Path], inputs: Inputs) -> None:
    from transformers import AutoModel, AutoTokenizer

    from ratchet.data.triplets import Triplets

    sizes = {"batch_size": FULL.batch_size, "num_negatives": FULL.num_negatives}
    data = Triplets(read_shards(inputs.mined), read_shards(inputs.corpus), seed=FULL.seed, **sizes)
    tokenizer = AutoTokenizer.from_pretrained(inputs.base)
    model = AutoModel.from_pretrained(inputs.base, add_pooling_layer=False).eval()
    matrices = [one for one in model.parameters() if one.ndim > 1]
    vectors = [one for one in model.parameters() if one.ndim == 1]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": 0.5},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups)
    assert sum(p.numel() for p in model.parameters()) == tuned[0].metrics["trainable_weights"]

    def embed(texts: list[str]) -> torch.Tensor:
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        hidden = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

    texts = read_shards(inputs.corpus)["text"].to_pylist()
    found: list[float] = []
    for queries in data.split_epoch(0):
        drawn = [data.draw(0, int(q)) for q in queries]
        passages = sorted(
            {texts[row] for positive, negatives in drawn for row in [positive, *negatives]}
        )
        score_QP = (
            embed([data.query_text[int(q)].as_py() for q in queries])
            @ embed(passages).T
            / FULL.temperature
        )
        total = torch.zeros(())
        for i, q in enumerate(queries):
            right, known = texts[drawn[i][0]], {texts[row] for row in data.positives(int(q))}
            columns = [j for j, text in enumerate(passages) if text == right or text not in known]
            total = (
                total
                - torch.log_softmax(score_QP[i, columns], 0)[columns.index(passages.index(right))]
            )
        rate = learning_rate_at(len(found), len(losses(tuned[0])), FULL)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        (total / len(queries)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(float(total.detach()) / len(queries))
    assert losses(tuned[0])[: len(found)] == pytest.approx(found, rel=1e-4)


def test_exported_model_is_the_measured_one(tuned: tuple[Result, Path], inputs: Inputs) -> None:
    from sentence_transformers import SentenceTransformer

    result, folder = tuned
    assert result.metrics["improved"]
    assert result.metrics["kept"] == f"epoch {result.metrics['best_epoch']}"
    valid, corpus = read_shards(inputs.valid), read_shards(inputs.corpus)
    ours = encoder.load(folder, dtype="float32", device="cpu")
    theirs = SentenceTransformer(str(folder), device="cpu")
    query_QD, corpus_ND = (
        ours.encode(table["text"].to_pylist(), "query") for table in (valid, corpus)
    )
    np.testing.assert_allclose(theirs.encode(valid["text"].to_pylist()), query_QD, atol=1e-5)
    score_QN, ids = query_QD @ corpus_ND.T, corpus["id"].to_pylist()
    total = 0.0
    for row, own in zip(valid.to_pylist(), score_QN, strict=True):
        order = [ids[i] for i in np.argsort(-own, kind="stable")][:25]
        places = sorted(order.index(name) + 1 for name in row["positives"] if name in order)
        total += sum((n + 1) / place for n, place in enumerate(places)) / len(row["positives"])
    assert result.metrics["valid/map@25"] == pytest.approx(total / len(valid), abs=2e-3)


@pytest.mark.parametrize("start_from", ["base", "current_best"])
def test_a_current_best_that_is_not_beaten_stays(
    start_from: str, tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    spoiled = dataclasses.replace(FULL, start_from=start_from, epochs=1, learning_rate=0.1)
    result = run_step(
        finetune_embedder.run,
        context(tmp_path),
        spoiled,
        dataclasses.replace(inputs, current_best=tuned[1]),
    )
    assert (result.metrics["kept"], result.metrics["improved"]) == ("current_best", False)
    assert result.metrics["valid/map@25_start"] == pytest.approx(
        tuned[0].metrics["valid/map@25"], abs=1e-5
    )
    for path in tuned[1].rglob("*"):
        assert (
            path.is_dir()
            or (tmp_path / "out/model" / path.relative_to(tuned[1])).read_bytes()
            == path.read_bytes()
        )


def test_unbeaten_base_stays(local_ray: None, inputs: Inputs, tmp_path: Path) -> None:
    spoiled = dataclasses.replace(FULL, epochs=1, learning_rate=1e-12, max_length=16)
    result = run_step(finetune_embedder.run, context(tmp_path), spoiled, inputs)
    made = tmp_path / "out/model"
    assert result.metrics["kept"] == "base"
    before, after = (load_file(folder / "model.safetensors") for folder in (inputs.base, made))
    assert before.keys() == after.keys()
    assert all(after[name].equal(weight) for name, weight in before.items())
    assert encoder.load(made, dtype="float32", device="cpu").encoding_config.max_length == 16


def test_whole_reranker_stays_if_unbeaten(local_ray: None, concepts: Path, tmp_path: Path) -> None:
    inputs = reranker_finetuning.make_inputs(concepts, tmp_path)
    config = dataclasses.replace(reranker_finetuning.FAST, method="full", learning_rate=2e-3)
    first = run_step(
        finetune_reranker.run, reranker_finetuning.context(tmp_path / "a"), config, inputs
    )
    made = tmp_path / "a/out/model"
    assert first.metrics["improved"]
    spoiled = dataclasses.replace(config, start_from="current_best", epochs=1, learning_rate=0.5)
    best = dataclasses.replace(inputs, current_best=made)
    second = run_step(
        finetune_reranker.run, reranker_finetuning.context(tmp_path / "b"), spoiled, best
    )
    assert second.metrics["kept"] == "current_best"
    assert second.metrics["valid/map@25_start"] == pytest.approx(
        first.metrics["valid/map@25"], abs=1e-5
    )
    pairs = ["q1x1 q1x2"], [["t1x0 t1x1 t1x2", "t2x0 t2x1"]]
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    scores = reranker.load(made, dtype="float32", device="cpu").score(*pairs)[0]
    tokenizer = AutoTokenizer.from_pretrained(made)
    model = AutoModelForSequenceClassification.from_pretrained(made).eval()
    batch = tokenizer([pairs[0][0]] * 2, pairs[1][0], padding=True, return_tensors="pt")
    with torch.no_grad():
        np.testing.assert_allclose(scores, model(**batch).logits[:, 0].numpy(), atol=1e-5)
    assert finetune_reranker.JOB.outputs[:2] == ("adapter", "model")


@pytest.mark.soak
@pytest.mark.slow
def test_a_decoder_in_parts_is_saved_with_its_head(
    local_ray: None, concepts: Path, tiny_decoder: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    shutil.copytree(tiny_decoder, base := tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(2048)  # DeepSpeed leaves smaller weights whole
    model.save_pretrained(base)
    inputs = dataclasses.replace(reranker_finetuning.make_inputs(concepts, tmp_path), base=base)
    config = dataclasses.replace(
        reranker_finetuning.DECODER, method="full", zero_stage=3, epochs=1, depth=2
    )
    run_step(
        finetune_reranker.run, reranker_finetuning.context(tmp_path, workers=2), config, inputs
    )
    before, after = (
        load_file(folder / "model.safetensors") for folder in (base, tmp_path / "out/model")
    )
    assert before.keys() == after.keys()
    assert [name for name, one in after.items() if one.equal(before[name])] == ["lm_head.weight"]
