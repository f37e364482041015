"""Contrast over a global batch: against plain torch, with workers, micro batches, ZeRO stages and checkpointing."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from step_process import run_step

from ratchet.data.pair_batches import PairSampler
from ratchet.data.tables import open_mapped, read_shards
from ratchet.errors import InputError
from ratchet.jobs.statements import finetune_embedder_pairs, prepare_papers
from ratchet.jobs.statements.finetune_embedder_pairs import Config, Inputs, check
from ratchet.jobs.training.schedule import learning_rate_at
from ratchet.orchestrator.job_interface import Context, Resources, Result
from ratchet.orchestrator.job_interface.settings import validate

FAST = Config(
    epochs=3,
    batch_size=16,
    lora_r=16,
    lora_alpha=32.0,
    learning_rate=5e-3,
    warmup_steps=2,
    temperature=0.1,
    dtype="float32",
    seed=3,
)


def context(folder: Path, workers: int = 1, micro_batch_size: int | None = None) -> Context:
    for name in ("out", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    resources = Resources(
        workers, cpus=2 / workers, gpus=0.0, retries=1, micro_batch_size=micro_batch_size
    )
    return Context("tune", "ab" * 32, 1, folder / "out", folder / "work", resources)


@pytest.fixture(scope="module")
def inputs(concepts: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """Papers about one concept each: half of their statements in one vocabulary, half in another."""
    folder, random = tmp_path_factory.mktemp("papers"), np.random.default_rng(2)
    with (folder / "papers.jsonl").open("w") as file:
        for number in range(90):
            concept, size = number % 12, 2 + number % 4
            texts = [
                f"n{number % 40} "
                + " ".join(f"{'tq'[n % 2]}{concept}x{w}" for w in random.permutation(8)[: 3 + n])
                for n in range(size)
            ]
            file.write(
                json.dumps({"arxiv_id": f"p{number}", "lemmas": texts[:1], "theorems": texts[1:]})
                + "\n"
            )
    given = prepare_papers.Inputs(folder / "papers.jsonl")
    config = prepare_papers.Config(validation_fraction=0.3, shard_rows=50)
    prepare_papers.check(config, given, {})
    result = prepare_papers.JOB.run(context(folder), config, given)
    assert result.metrics["papers"] == 90
    return Inputs(concepts / "base", folder / "out/train", folder / "out/valid")


def losses(result: Result) -> list[float]:
    return result.curves["loss against step"]["y"]


@pytest.fixture(scope="module")
def tuned(
    local_ray: None, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("tuned")
    check(FAST, inputs, {})
    return run_step(
        finetune_embedder_pairs.run, context(folder), FAST, inputs
    ), folder / "out/adapter"


def test_training_equals_plain_torch(tuned: tuple[Result, Path], inputs: Inputs) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel, AutoTokenizer

    statements = open_mapped(inputs.train)
    data = PairSampler(statements, FAST.batch_size, seed=FAST.seed)
    papers, texts = statements["paper"].to_pylist(), statements["text"].to_pylist()
    tokenizer = AutoTokenizer.from_pretrained(inputs.base)
    torch.manual_seed(FAST.seed)
    base = AutoModel.from_pretrained(inputs.base, add_pooling_layer=False)
    torch.manual_seed(FAST.seed)
    lora = LoraConfig(
        r=16, lora_alpha=32, target_modules="all-linear", task_type="FEATURE_EXTRACTION"
    )
    model = get_peft_model(base, lora).eval()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, weight_decay=0.01)

    def embed(rows: np.ndarray) -> torch.Tensor:
        batch = tokenizer([texts[row] for row in rows], padding=True, return_tensors="pt")
        hidden = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

    found: list[float] = []
    total = data.num_batches * FAST.epochs
    for epoch in range(FAST.epochs):
        batch, pairs = FAST.batch_size, data.draw_pairs(epoch)
        for start in range(0, len(pairs) - batch + 1, batch):
            rows = pairs[start : start + batch]
            logits = embed(rows[:, 0]) @ embed(rows[:, 1]).T / FAST.temperature
            same = torch.tensor([[papers[a] == papers[b] for b in rows[:, 0]] for a in rows[:, 0]])
            logits = logits.masked_fill(same & ~torch.eye(batch, dtype=torch.bool), -torch.inf)
            target = torch.arange(batch)
            both = [torch.nn.functional.cross_entropy(side, target) for side in (logits, logits.T)]
            loss = (both[0] + both[1]) / 2
            optimizer.param_groups[0]["lr"] = learning_rate_at(len(found), total, FAST)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            found.append(float(loss.detach()))
    assert len(found) >= 6
    assert losses(tuned[0]) == pytest.approx(found, rel=2e-4)


@pytest.mark.soak
def test_workers_and_micro_batches_change_nothing(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    one = tuned[0]
    change = {"zero_stage": 2, "gradient_checkpointing": True, "eval_steps": 3}
    config = dataclasses.replace(FAST, **change)
    other = run_step(
        finetune_embedder_pairs.run,
        context(tmp_path / "other", workers=2, micro_batch_size=3),
        config,
        inputs,
    )
    assert losses(other) == pytest.approx(losses(one), rel=2e-4)
    steps = [row["step"] for row in other.tables["steps"]]
    total = len(losses(other))
    assert steps == ["start", *map(str, sorted({*range(3, total, 3), total}))]
    assert other.tables["steps"][-1]["valid/mrr"] == pytest.approx(
        one.tables["epochs"][-1]["valid/mrr"], abs=2e-3
    )


def test_it_learns_and_the_table_is_what_brute_force_finds(
    tuned: tuple[Result, Path], inputs: Inputs
) -> None:
    from ratchet.models.embedder import encoder

    result, adapter = tuned
    valid = read_shards(inputs.valid)
    papers = valid["paper"].to_pylist()
    vectors = encoder.load(inputs.base, adapter, dtype="float32").encode(
        valid["text"].to_pylist(), "passage"
    )
    total = []
    for i, paper in enumerate(papers):
        order = [j for j in np.argsort(-(vectors @ vectors[i]), kind="stable") if j != i]
        first = next((n for n, j in enumerate(order, 1) if papers[j] == paper), None)
        total += [1 / first] if first else []
    best = next(row for row in result.tables["epochs"] if row["best"])
    assert best["valid/mrr"] == pytest.approx(np.mean(total), abs=2e-3)
    assert result.metrics["improved"]
    assert best["valid/mrr"] > result.tables["epochs"][0]["valid/mrr"] + 0.05


@pytest.mark.soak
def test_a_decoder_in_4_bits_learns_with_dropout(
    local_ray: None, inputs: Inputs, tiny_decoder: Path, tmp_path: Path
) -> None:
    from ratchet.models.embedder import encoder, projection

    config = dataclasses.replace(
        FAST,
        quantization="nf4",
        dtype="bfloat16",
        lora_dropout=0.05,
        gradient_checkpointing=True,
        learning_rate=2e-3,
        projection=24,
    )
    decoder = dataclasses.replace(inputs, base=tiny_decoder)
    result = run_step(
        finetune_embedder_pairs.run,
        context(tmp_path, workers=2, micro_batch_size=8),
        config,
        decoder,
    )
    found = losses(result)
    assert np.mean(found[-3:]) < np.mean(found[:2])
    assert result.metrics["kept"].startswith(
        "epoch"
    )  # without its projection the base is another model
    one = encoder.load(tiny_decoder, tmp_path / "out/adapter", dtype="float32")
    assert one.encode(["t1x1"], "passage").shape == (1, 24)
    start = projection.init(64, 24, config.seed).weight
    assert (one.projection.weight - start).abs().max() > 1e-4


def test_without_held_out_statements_the_last_epoch_is_kept(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    from ratchet.models.embedder import encoder

    config = dataclasses.replace(FAST, epochs=2, projection=24, projection_bias=True, keep="all")
    everything = dataclasses.replace(inputs, valid=None)
    check(config, everything, {})
    result = run_step(finetune_embedder_pairs.run, context(tmp_path), config, everything)
    assert result.metrics["kept"] == "epoch 2"
    assert [list(row) for row in result.tables["epochs"]] == [["epoch", "loss", "best"]] * 3
    assert not any(name.startswith("valid/") for name in result.metrics)
    one = encoder.load(inputs.base, tmp_path / "out/adapter", dtype="float32")
    assert one.projection.bias.abs().max() > 1e-4
    last = (tmp_path / "out/checkpoint-epoch-2/2_Dense/model.safetensors").read_bytes()
    assert (tmp_path / "out/adapter/2_Dense/model.safetensors").read_bytes() == last


def test_an_empty_split_is_named(inputs: Inputs) -> None:
    parents = {"valid": Result({"valid/statements": 0})}
    with pytest.raises(InputError, match=r"validation_fraction=0 of the recipe"):
        check(FAST, dataclasses.replace(inputs, valid=None), parents)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"projection_bias": True}, "projection_bias: True given; expected false without"),
        ({"batch_size": 1}, "batch_size: 1 given; expected >= 2"),
        ({"temperature": 0.0}, "temperature: 0.0 given"),
        ({"chunk": 0}, "chunk: 0 given"),
        ({"warmup_steps": -1}, "warmup_steps: -1 given"),
        ({"eval_steps": 0}, "eval_steps: 0 given"),
    ],
)
def test_wrong_settings_are_named(inputs: Inputs, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        check(validate(Config, {**vars(FAST), **change}, "finetune_embedder_pairs"), inputs, {})
