"""Finetuning of a tiny BERT embedder: against plain torch, with several workers, and with a killed worker."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from embedder_finetuning import FAST, SHOWN, context, losses, write_examples
from step_process import run_step

from ratchet.data.tables import read_shards, write_table
from ratchet.errors import InputError
from ratchet.jobs.comparison import choose_checkpoint
from ratchet.jobs.retrieval import finetune_embedder
from ratchet.jobs.retrieval.finetune_embedder import Inputs
from ratchet.jobs.training.schedule import learning_rate_at
from ratchet.orchestrator.job_interface import Result


@pytest.fixture(scope="module")
def inputs(concepts: Path) -> Inputs:
    return Inputs(concepts / "base", concepts / "mined", concepts / "corpus", concepts / "valid")


@pytest.fixture(scope="module")
def tuned(
    local_ray: None, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("tuned")
    return run_step(finetune_embedder.run, context(folder), FAST, inputs), folder / "out/adapter"


def test_training_is_what_plain_torch_and_peft_do(
    tuned: tuple[Result, Path], inputs: Inputs
) -> None:
    """No buckets, no DeepSpeed; SDPA; similarities of one query after the other."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel, AutoTokenizer

    from ratchet.data.triplets import Triplets

    sizes = {"batch_size": FAST.batch_size, "num_negatives": FAST.num_negatives}
    data = Triplets(read_shards(inputs.mined), read_shards(inputs.corpus), seed=FAST.seed, **sizes)
    tokenizer = AutoTokenizer.from_pretrained(inputs.base)
    base = AutoModel.from_pretrained(inputs.base, add_pooling_layer=False)
    torch.manual_seed(FAST.seed)
    model = get_peft_model(
        base,
        LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="FEATURE_EXTRACTION"
        ),
    )
    model.eval()  # without dropout
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, weight_decay=0.01)

    def embed(texts: list[str]) -> torch.Tensor:
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        hidden = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

    texts = read_shards(inputs.corpus)["text"].to_pylist()
    found = []
    for epoch in range(2):
        for queries in data.split_epoch(epoch):
            drawn = [data.draw(epoch, int(q)) for q in queries]
            passages = sorted(
                {texts[row] for positive, negatives in drawn for row in [positive, *negatives]}
            )
            query_QD = embed([data.query_text[int(q)].as_py() for q in queries])
            passage_PD = embed(passages)
            total = torch.zeros(())
            for i, q in enumerate(queries):
                right = texts[drawn[i][0]]
                known = {texts[row] for row in data.positives(int(q))}
                columns = [
                    j for j, text in enumerate(passages) if text == right or text not in known
                ]
                scores = passage_PD[columns] @ query_QD[i] / FAST.temperature
                total = total - torch.log_softmax(scores, 0)[columns.index(passages.index(right))]
            loss = total / len(queries)
            optimizer.param_groups[0]["lr"] = learning_rate_at(
                len(found), len(losses(tuned[0])), FAST
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            found.append(float(loss.detach()))
    assert losses(tuned[0])[: len(found)] == pytest.approx(found, rel=1e-4)


def load_adapters(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    from safetensors.torch import load_file

    found = {}
    for path in folder.glob("*/adapter_model.safetensors"):
        found[path.parent.name] = load_file(path)
    return found


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(own.equal(other[name]) for name, own in one.items())


def test_all_epochs_are_kept_and_one_is_chosen(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    """Also where none is better than the start, as after epochs without learning."""
    config = dataclasses.replace(FAST, keep="all", learning_rate=1e-12, epochs=2)
    result = run_step(finetune_embedder.run, context(tmp_path), config, inputs)
    kept = load_adapters(tmp_path / "out")
    assert set(kept) == {"adapter", "checkpoint-epoch-1", "checkpoint-epoch-2"}
    assert not are_equal(kept["checkpoint-epoch-1"], kept["checkpoint-epoch-2"])
    assert result.metrics["trainable_weights"] == sum(w.numel() for w in kept["adapter"].values())
    given = choose_checkpoint.Inputs(tmp_path / "out")

    def choose(number: int | None) -> tuple[Result, dict[str, torch.Tensor]]:
        own = context(tmp_path / f"chosen-{number}")
        made = choose_checkpoint.run(own, choose_checkpoint.Config(number), given)
        assert sorted(path.name for path in own.out.iterdir()) == ["adapter"]
        return made, load_adapters(own.out)["adapter"]

    made, weights = choose(1)
    assert are_equal(weights, kept["checkpoint-epoch-1"])
    assert made.metrics["valid/map@25"] == result.tables["epochs"][1]["valid/map@25"]
    assert made.metrics["changed"]
    assert made.note == "epoch 1 was chosen; the training returned start"
    made, weights = choose(None)
    assert are_equal(weights, kept["adapter"])
    assert (made.metrics["kept"], made.metrics["changed"], made.note) == ("start", False, "")
    with pytest.raises(InputError, match="checkpoint=3 given; expected one of the epochs 1, 2"):
        choose(3)


def test_the_last_epoch_is_returned_though_none_is_better(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    config = dataclasses.replace(FAST, keep="last", learning_rate=1e-12, epochs=2)
    result = run_step(finetune_embedder.run, context(tmp_path), config, inputs)
    assert not result.metrics["improved"]
    assert (result.metrics["kept"], result.metrics["best_epoch"]) == ("epoch 2", 2)
    assert set(load_adapters(tmp_path / "out")) == {"adapter"}


def test_patience_and_a_fraction_of_the_held_out_queries(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    """Without learning, no epoch is better than the first one, but for the last digits of the loss."""
    whole = tuned[0].tables["epochs"]
    config = dataclasses.replace(FAST, patience=1, eval_fraction=0.5)
    result = run_step(finetune_embedder.run, context(tmp_path), config, inputs)
    rows = result.tables["epochs"][1:]
    found = [row["valid/map@25"] for row in rows]
    assert len(rows) < config.epochs
    assert max(found[:-1]) >= found[-1]
    assert result.note.endswith(f"stopped in epoch {len(rows)} of 5 (patience=1)")
    assert [row["loss"] for row in rows] == [row["loss"] for row in whole[1 : len(rows) + 1]]
    assert found != [row["valid/map@25"] for row in whole[1 : len(rows) + 1]], "half of valid"


@pytest.mark.soak
def test_two_workers_give_the_same_losses_and_metrics(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    """On the two workers also with micro batches, which do not change the result either."""
    one = tuned[0]
    other = run_step(
        finetune_embedder.run,
        context(tmp_path / "other", workers=2, micro_batch_size=5),
        FAST,
        inputs,
    )
    assert losses(other) == pytest.approx(losses(one), rel=1e-5, abs=1e-6)
    first, second = (dict(run.tables["epochs"][0]) for run in (one, other))
    assert second.pop("valid/eval_loss") == pytest.approx(first.pop("valid/eval_loss"), rel=1e-5)
    assert second == first


def test_the_table_is_what_brute_force_finds_for_the_adapter(
    tuned: tuple[Result, Path], inputs: Inputs
) -> None:
    from ratchet.models.embedder import encoder

    result, adapter = tuned
    model = encoder.load(inputs.base, adapter, dtype="float32")
    corpus, valid = read_shards(inputs.corpus).to_pylist(), read_shards(inputs.valid).to_pylist()
    scores = (
        model.encode([r["text"] for r in valid], "query")
        @ model.encode([r["text"] for r in corpus], "passage").T
    )
    total = 0.0
    for row, own in zip(valid, scores, strict=True):
        order = [corpus[i]["id"] for i in np.argsort(-own, kind="stable")][:25]
        places = sorted(order.index(name) + 1 for name in row["positives"] if name in order)
        total += sum((n + 1) / place for n, place in enumerate(places)) / len(row["positives"])
    best = next(row for row in result.tables["epochs"] if row["best"])
    assert best["valid/map@25"] == pytest.approx(total / len(valid), abs=2e-3)
    assert result.metrics["improved"]
    assert result.metrics["valid/map@25"] > result.metrics["valid/map@25_start"] + 0.1
    assert sum(row["best"] for row in result.tables["epochs"]) == 1
    assert (
        json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] is None
    )


@pytest.mark.soak
def test_a_large_corpus_is_represented_by_a_pool(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    """On two workers. The training itself is that of the whole corpus."""
    whole, _ = tuned
    config = dataclasses.replace(FAST, eval_pool=8)
    (tmp_path / "valid").mkdir()
    few = read_shards(inputs.valid).slice(0, 5)  # type: ignore[arg-type]
    write_table(tmp_path / "valid/shard-00000.parquet", few)
    result = run_step(
        finetune_embedder.run,
        context(tmp_path, workers=2),
        config,
        dataclasses.replace(inputs, valid=tmp_path / "valid"),
    )
    assert result.metrics["valid/documents"] == 8
    assert "valid/documents" not in whole.metrics
    assert losses(result) == pytest.approx(losses(whole), rel=1e-5, abs=1e-6)


@pytest.mark.soak
def test_training_is_reproducible(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    current_best = dataclasses.replace(inputs, current_best=tuned[1])
    spoiled = dataclasses.replace(FAST, start_from="current_best", epochs=1, learning_rate=0.5)
    result = run_step(finetune_embedder.run, context(tmp_path / "a"), spoiled, current_best)
    assert result.metrics["kept"] == "current_best"
    assert result.note == "kept the current best: no epoch was better"
    assert result.metrics["improved"] is False
    assert result.metrics["valid/map@25"] == pytest.approx(
        tuned[0].metrics["valid/map@25"], abs=2e-3
    )
    for path in tuned[1].iterdir():
        assert (tmp_path / "a/out/adapter" / path.name).read_bytes() == path.read_bytes()

    allowed = run_step(
        finetune_embedder.run,
        context(tmp_path / "b"),
        dataclasses.replace(spoiled, allow_regression=True),
        current_best,
    )
    assert allowed.metrics["kept"] == "epoch 1"
    assert allowed.note == ""
    assert losses(allowed) == losses(result)
    assert allowed.metrics["valid/map@25"] < result.metrics["valid/map@25"]


def test_unbeaten_base_gets_a_neutral_adapter(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    from ratchet.models.embedder import encoder

    result = run_step(
        finetune_embedder.run,
        context(tmp_path),
        dataclasses.replace(FAST, epochs=1, learning_rate=1e-12),
        inputs,
    )
    assert result.metrics["kept"] == "base"
    assert result.note == "kept the base: no epoch was better"
    texts = read_shards(inputs.corpus)["text"].to_pylist()
    plain = encoder.load(inputs.base, dtype="float32").encode(texts, "passage")
    np.testing.assert_array_equal(
        encoder.load(inputs.base, tmp_path / "out/adapter", dtype="float32").encode(
            texts, "passage"
        ),
        plain,
    )


def test_an_adapter_brings_its_examples_along(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    from ratchet.models.embedder import encoder
    from ratchet.models.embedder.encoding_config import read_encoding_config

    inputs = dataclasses.replace(inputs, examples=write_examples(tmp_path))
    result = run_step(
        finetune_embedder.run, context(tmp_path), dataclasses.replace(SHOWN, epochs=2), inputs
    )
    adapter = tmp_path / "out/adapter"
    agreed = read_encoding_config(adapter)
    assert len(agreed.examples) == 2
    assert agreed.example_template == "t0x7 {text} t1x7 {answer}"
    best = next(row for row in result.tables["epochs"] if row["best"])
    if best["epoch"] != "start":
        queries = read_shards(inputs.valid)["text"].to_pylist()
        found = encoder.load(inputs.base, adapter, dtype="float32").encode(queries, "query")
        plain = encoder.load(
            inputs.base, adapter, dtype="float32", encoding_config=read_encoding_config(inputs.base)
        )
        assert np.abs(found - plain.encode(queries, "query")).max() > 1e-3


def test_without_held_out_queries_the_last_epoch_is_kept(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    """As if the last epoch had been evaluated only, and was kept whatever it gave; also over a current best adapter."""
    config = dataclasses.replace(FAST, epochs=2)
    everything = dataclasses.replace(inputs, valid=None, current_best=tuned[1])
    result = run_step(finetune_embedder.run, context(tmp_path / "all"), config, everything)
    at_the_end = dataclasses.replace(config, eval_steps=10**6, allow_regression=True)
    expected = run_step(finetune_embedder.run, context(tmp_path / "some"), at_the_end, inputs)
    assert losses(result) == losses(expected)
    paths = [tmp_path / name / "out/adapter/adapter_model.safetensors" for name in ("all", "some")]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    counts = {"trainable_weights", "weights", "trainable_percent"}
    assert {"loss", "best_epoch", "kept", "changed", "dtype"} == set(result.metrics) - counts
    assert (result.metrics["best_epoch"], result.metrics["kept"]) == (2, "epoch 2")
    assert result.note == "kept the last epoch: nothing is held out, nothing was compared"
    assert [(row["epoch"], row["best"]) for row in result.tables["epochs"]] == [
        ("start", False),
        ("1", False),
        ("2", True),
    ]
