"""The embedder's finetuning on a tiny BERT: against plain torch, over workers, through kills."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from data.tables import read_shards
from jobs.finetune_embedder import Config, Inputs, check, run
from jobs.job import BadInput, Context, Progress, Resources, Result
from jobs.optimization import rate

ROOT = Path(__file__).resolve().parents[2]
CONCEPTS = 12
FAST = Config(
    epochs=5, batch=16, negatives=3, rank=16, alpha=32.0, learning_rate=5e-3, temperature=0.1, dtype="float32", seed=3
)


@pytest.fixture(scope="module")
def inputs(concepts: Path) -> Inputs:
    return Inputs(concepts / "base", concepts / "mined", concepts / "corpus", concepts / "valid")


class Lines:
    """Context.progress into a file, with the process that told."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, progress: Progress) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([os.getpid(), progress.done, progress.stage]) + "\n")

    def read(self) -> list[tuple[int, float, str]]:
        return [tuple(json.loads(line)) for line in self.path.read_text().splitlines()] if self.path.exists() else []


def context(folder: Path, workers: int = 1, retries: int = 1) -> Context:
    for name in ("out", "work"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    resources = Resources(workers, cpus=2 / workers, gpus=0.0, retries=retries)
    return Context("tune", "cd" * 32, 1, folder / "out", folder / "work", resources, Lines(folder / "progress"))


def losses(result: Result) -> list[float]:
    return result.curves["loss against step"]["y"]


@pytest.fixture(scope="module")
def tuned(local_ray: None, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    folder = tmp_path_factory.mktemp("tuned")
    return run(context(folder), FAST, inputs), folder / "out/adapter"


def test_training_is_what_plain_torch_and_peft_do(tuned: tuple[Result, Path], inputs: Inputs) -> None:
    """No buckets, no fused LoRA, no DeepSpeed; SDPA; similarities of one query after the other."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel, AutoTokenizer

    from data.triplets import Triplets

    data = Triplets(read_shards(inputs.mined), read_shards(inputs.corpus))
    tokenizer = AutoTokenizer.from_pretrained(inputs.base)
    base = AutoModel.from_pretrained(inputs.base, add_pooling_layer=False)
    torch.manual_seed(FAST.seed)
    model = get_peft_model(
        base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="FEATURE_EXTRACTION")
    )
    model.eval()  # without dropout
    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, weight_decay=0.01)

    def embed(texts: list[str]) -> torch.Tensor:
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

    texts = read_shards(inputs.corpus)["text"].to_pylist()
    found = []
    for epoch in range(FAST.epochs):
        for queries in data.batches(FAST.seed, epoch, FAST.batch):
            drawn = [data.draw(FAST.seed, epoch, int(q), FAST.negatives) for q in queries]
            passages = sorted({texts[row] for positive, negatives in drawn for row in [positive, *negatives]})
            query_QD = embed([data.query_text[int(q)].as_py() for q in queries])
            passage_PD = embed(passages)
            total = torch.zeros(())
            for i, q in enumerate(queries):
                right = texts[drawn[i][0]]
                known = {texts[row] for row in data.positives(int(q))}
                columns = [j for j, text in enumerate(passages) if text == right or text not in known]
                scores = passage_PD[columns] @ query_QD[i] / FAST.temperature
                total = total - torch.log_softmax(scores, 0)[columns.index(passages.index(right))]
            loss = total / len(queries)
            optimizer.param_groups[0]["lr"] = rate(len(found), len(losses(tuned[0])), options())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            optimizer.step()
            found.append(float(loss.detach()))
    assert losses(tuned[0]) == pytest.approx(found, rel=1e-4)


def options() -> Any:
    from jobs.optimization import Options

    names = {field.name for field in dataclasses.fields(Options)}
    return Options(**{name: value for name, value in vars(FAST).items() if name in names})


@pytest.mark.slow
def test_two_workers_give_the_same_losses_and_metrics(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    other = run(context(tmp_path, workers=2), FAST, inputs)
    assert losses(other) == pytest.approx(losses(tuned[0]), rel=1e-5, abs=1e-6)
    assert other.tables["epochs"][0] == tuned[0].tables["epochs"][0]


def test_the_table_is_what_brute_force_finds_for_the_adapter(tuned: tuple[Result, Path], inputs: Inputs) -> None:
    from models import encoder

    result, adapter = tuned
    model = encoder.load(inputs.base, adapter, dtype="float32")
    corpus, valid = read_shards(inputs.corpus).to_pylist(), read_shards(inputs.valid).to_pylist()
    scores = model.encode([r["text"] for r in valid], "query") @ model.encode([r["text"] for r in corpus], "passage").T
    total = 0.0
    for row, own in zip(valid, scores, strict=True):
        order = [corpus[i]["id"] for i in np.argsort(-own, kind="stable")][:25]
        places = sorted(order.index(name) + 1 for name in row["positives"] if name in order)
        total += sum((n + 1) / place for n, place in enumerate(places)) / len(row["positives"])
    best = next(row for row in result.tables["epochs"] if row["best"])
    assert best["valid map@25"] == pytest.approx(total / len(valid), abs=2e-3)
    assert result.metrics["improved"]
    assert result.metrics["valid map@25"] > result.metrics["valid map@25 at the start"] + 0.1
    assert sum(row["best"] for row in result.tables["epochs"]) == 1
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] is None


@pytest.mark.slow
def test_the_same_step_gives_the_same_bytes_and_an_incumbent_that_is_not_beaten_stays(
    tuned: tuple[Result, Path], inputs: Inputs, tmp_path: Path
) -> None:
    incumbent = dataclasses.replace(inputs, incumbent=tuned[1])
    spoiled = dataclasses.replace(FAST, start="incumbent", epochs=1, learning_rate=0.5)
    result = run(context(tmp_path / "a"), spoiled, incumbent)
    assert result.metrics["kept"] == "incumbent"
    assert result.metrics["improved"] is False
    assert result.metrics["valid map@25"] == pytest.approx(tuned[0].metrics["valid map@25"], abs=2e-3)
    for path in tuned[1].iterdir():
        assert (tmp_path / "a/out/adapter" / path.name).read_bytes() == path.read_bytes()

    allowed = run(context(tmp_path / "b"), dataclasses.replace(spoiled, allow_regression=True), incumbent)
    assert allowed.metrics["kept"] == "epoch 1"
    assert losses(allowed) == losses(result)
    assert allowed.metrics["valid map@25"] < result.metrics["valid map@25"]


@pytest.mark.slow
def test_a_base_that_is_not_beaten_gets_an_adapter_that_changes_nothing(
    local_ray: None, inputs: Inputs, tmp_path: Path
) -> None:
    from models import encoder

    result = run(context(tmp_path), dataclasses.replace(FAST, epochs=1, learning_rate=1e-12), inputs)
    assert result.metrics["kept"] == "base"
    texts = read_shards(inputs.corpus)["text"].to_pylist()
    plain = encoder.load(inputs.base, dtype="float32").encode(texts, "passage")
    np.testing.assert_array_equal(
        encoder.load(inputs.base, tmp_path / "out/adapter", dtype="float32").encode(texts, "passage"), plain
    )


LONG = dataclasses.replace(FAST, epochs=1, batch=2, save_steps=8, learning_rate=2e-3)


@pytest.fixture(scope="module")
def undisturbed(local_ray: None, inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run(context(tmp_path_factory.mktemp("long")), LONG, inputs)


@pytest.mark.parametrize(
    ("stage", "workers"), [pytest.param(1, 1, marks=pytest.mark.slow), pytest.param(3, 2, marks=pytest.mark.soak)]
)
def test_a_killed_worker_goes_on_from_the_middle_of_the_epoch(
    undisturbed: Result, inputs: Inputs, tmp_path: Path, stage: int, workers: int
) -> None:
    here, config = context(tmp_path, workers), dataclasses.replace(LONG, zero_stage=stage)
    told = here.progress
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            time.sleep(0.02)
            killed.extend(pid for pid, done, _ in told.read() if done >= 20)  # Ray has the first checkpoint
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    result = run(here, config, inputs)
    thread.join(timeout=1)
    after = [done for pid, done, _ in told.read() if pid != killed[0]]
    assert after, "the worker was not killed in time"
    assert min(after) >= 8, "steps before the last checkpoint were not done again"
    if stage == 3:  # adds its gradients up in another order
        assert losses(result) == pytest.approx(losses(undisturbed), rel=1e-3, abs=1e-5)
        weights = load_file(tmp_path / "out/adapter/adapter_model.safetensors")
        assert all(weight.numel() and bool(weight.isfinite().all()) for weight in weights.values())
        return
    assert losses(result) == losses(undisturbed)
    assert result.metrics == undisturbed.metrics


SHOWN = dataclasses.replace(
    FAST,
    examples=3,
    fixed_examples=2,
    example_max_length=5,
    query_template="t0x7 {text} t1x7 ",
    query_max_length=6,
    task="t2x7",
)


def test_queries_stand_behind_examples_that_do_not_tell_their_answer(inputs: Inputs) -> None:
    from jobs.finetune_embedder import Trainee
    from jobs.trainee import Place

    trainee = Trainee(Place(0, 1, "cpu"), SHOWN, inputs, Resources(1, cpus=1.0, gpus=0.0))
    tokenizer, data = trainee.encoder.tokens.tokenizer, trainee.triplets
    seen = []
    for epoch in range(2):
        batch = data.step(SHOWN.seed, epoch, 0, SHOWN.batch, SHOWN.negatives, 0, 1)
        rows = trainee._prepare(epoch, 0).query_ids
        for query, row in zip(batch.query_Q.tolist(), rows, strict=True):
            words = tokenizer.decode(row, skip_special_tokens=True).split()
            parts = " ".join(words).split("t0x7 ")[1:]
            *examples, own = [part.split("t1x7") for part in parts]
            assert own[0].split() == data.query_text[query].as_py().split()[:6]
            answers = {data.corpus_text[int(p)].as_py() for p in data.positives(query)}
            for text, answer in examples:
                assert " ".join(text.split()) != data.query_text[query].as_py()
                assert answer.split()
                assert not any(" ".join(right.split()[:5]) == " ".join(answer.split()) for right in answers)
            seen.append(len(examples))
    assert set(seen) == {0, 1, 2, 3}
    agreed = trainee.encoder.contract
    assert len(agreed.examples) == 2
    assert {text for text, _ in agreed.examples} <= set(data.query_text.to_pylist())
    fixed = tokenizer.decode(trainee.encoder.tokenize(["q1x1"], "query")[0], skip_special_tokens=True)
    assert fixed.count("t0x7") == 3


@pytest.mark.slow
def test_an_adapter_brings_its_examples_along(local_ray: None, inputs: Inputs, tmp_path: Path) -> None:
    from models import contract, encoder

    result = run(context(tmp_path), dataclasses.replace(SHOWN, epochs=2), inputs)
    adapter = tmp_path / "out/adapter"
    agreed = contract.read(adapter)
    assert len(agreed.examples) == 2
    assert agreed.example_template == "t0x7 {text} t1x7 {answer}"
    assert agreed.task == "t2x7"
    best = next(row for row in result.tables["epochs"] if row["best"])
    if best["epoch"] != "start":
        queries = read_shards(inputs.valid)["text"].to_pylist()
        found = encoder.load(inputs.base, adapter, dtype="float32").encode(queries, "query")
        plain = encoder.load(inputs.base, adapter, dtype="float32", contract=contract.read(inputs.base))
        assert np.abs(found - plain.encode(queries, "query")).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2])
def test_a_decoder_in_4_bits_learns_with_examples(
    local_ray: None, inputs: Inputs, tiny_decoder: Path, tmp_path: Path, stage: int
) -> None:
    config = Config(
        epochs=2,
        batch=16,
        negatives=3,
        learning_rate=2e-3,
        temperature=0.1,
        quantization="nf4",
        dtype="bfloat16",
        zero_stage=stage,
        examples=2,
        example_max_length=24,
        max_length=256,
        query_max_length=64,
        task="Find the concept.",
    )
    decoder = dataclasses.replace(inputs, base=tiny_decoder)
    check(config, decoder)
    result = run(context(tmp_path, workers=2), config, decoder)
    found = losses(result)
    assert np.mean(found[-3:]) < np.mean(found[:3]) - 0.05
    text = (tmp_path / "out/adapter/ratchet_contract.json").read_text()
    assert "<instruct>{task}" in text
    assert "Find the concept." in text


DRIVER = """
import logging, sys, pickle, ray
from pathlib import Path
spec = pickle.loads(Path(sys.argv[1]).read_bytes())
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
from jobs.finetune_embedder import run
import json
class Lines:
    def __init__(self, path, name): self.path, self.name = path, name
    def __call__(self, progress):
        with open(self.path, "a") as file: file.write(json.dumps([self.name, progress.done, progress.stage]) + "\\n")
context, config, inputs = spec
from dataclasses import replace
result = run(replace(context, progress=Lines(sys.argv[3], sys.argv[2])), config, inputs)
Path(sys.argv[4]).write_bytes(pickle.dumps(result))
"""


@pytest.mark.soak
def test_a_killed_driver_goes_on_too(local_ray: None, inputs: Inputs, tmp_path: Path) -> None:
    """What the first driver started dies with it within a second or so: the run must be longer than that. (And few
    checkpoints: Ray Train takes one every two seconds.)"""
    longer = dataclasses.replace(LONG, epochs=6, save_steps=40)
    undisturbed = run(context(tmp_path / "undisturbed"), longer, inputs)
    here = dataclasses.replace(context(tmp_path / "killed"), progress=None)  # type: ignore[arg-type]
    (tmp_path / "spec").write_bytes(pickle.dumps((here, longer, inputs)))

    def driver(name: str) -> subprocess.Popen[bytes]:
        files = [str(tmp_path / part) for part in ("progress", "result")]
        command = [sys.executable, "-c", DRIVER, str(tmp_path / "spec"), name, *files]
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    lines = Lines(tmp_path / "progress")
    first = driver("first")
    while not any(done >= 60 for _, done, _ in lines.read()):
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    first.wait()
    assert driver("second").wait(timeout=300) == 0
    after = [done for name, done, _ in lines.read() if name == "second"]
    assert after, "the first driver's workers finished by themselves"
    assert min(after) >= 40
    result = pickle.loads((tmp_path / "result").read_bytes())
    assert losses(result) == losses(undisturbed)
    assert result.tables == undisturbed.tables


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"learning_rate": 0.0}, "learning_rate: 0.0 given"),
        ({"temperature": -1.0}, "temperature: -1.0 given"),
        ({"batch": 1}, "batch: 1 given"),
        ({"schedule": "cosin"}, "cosine, linear or constant"),
        ({"zero_stage": 4}, "zero_stage: 4 given"),
        ({"zero_stage": 3, "quantization": "nf4"}, "2 or less with nf4"),
        ({"negatives": -1}, "negatives: -1 given"),
        ({"negatives": 0, "in_batch_negatives": False}, "1 or more where in_batch_negatives is off"),
        ({"metric": "accuracy"}, "metric: accuracy given"),
        ({"epochs": 0}, "epochs: 0 given"),
        ({"dropout": 1.0}, "dropout: 1.0 given"),
        ({"examples": 1, "fixed_examples": 2}, "fixed_examples: 2 given; expected 0 up to examples"),
        (
            {"examples": 3},
            "examples: 3 given, of up to 256 tokens each, with a max_length of 64; that leaves 0 for the",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(change: dict[str, Any], says: str, inputs: Inputs) -> None:
    with pytest.raises(BadInput, match=says):
        check(dataclasses.replace(Config(), **change), inputs)


def test_a_base_without_weights_is_refused(inputs: Inputs, tmp_path: Path) -> None:
    from models.errors import ModelError

    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no tokenizer"):
        check(Config(), dataclasses.replace(inputs, base=tmp_path))
    check(Config(), Inputs(None, None, None, None))  # type: ignore[arg-type]  # not made yet


def test_more_workers_than_queries_are_refused_with_the_fix(local_ray: None, inputs: Inputs, tmp_path: Path) -> None:
    from jobs.finetune_embedder import Trainee
    from jobs.trainee import Place

    with pytest.raises(BadInput, match=r"workers: 3 given.*lower workers, or raise batch"):
        Trainee(Place(0, 3, "cpu"), dataclasses.replace(FAST, batch=2), inputs, Resources(3, 1.0, 0.0))
