"""Jobs of answering systems on Ray, from prepared tasks to verified checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from countdown_files import FAST, inputs, make_countdown_files
from shard_work import process_shard
from step_process import run_step

from ratchet.data.tables import read_shards
from ratchet.data.tasks.answers import VERIFICATIONS
from ratchet.data.tasks.task import SAMPLES, read_task_name, write_task_name
from ratchet.errors import ArtifactError, InputError
from ratchet.jobs.answers import (
    compare_checkpoints,
    evaluate_answers,
    generate,
    rejection_sample,
    sft,
    teacher_logprobs,
)
from ratchet.jobs.answers.answering import Worker
from ratchet.jobs.answers.sft_training import SftTask
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.orchestrator.job_interface import Context, Resources

MakeContext = Callable[..., Context]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_countdown_files(tmp_path_factory.mktemp("countdown"))


@pytest.fixture(scope="module")
def trained(
    local_ray: None, made: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("sft")
    (folder / "out").mkdir()
    (folder / "work").mkdir()
    context = Context(
        "sft", "a" * 64, 1, folder / "out", folder / "work", Resources(1, 2.0, 0.0, retries=0)
    )
    config = dataclasses.replace(FAST, epochs=4, checkpoints=(10, 20))
    sft.check(config, inputs(made), {})
    return run_step(sft.run, context, config, inputs(made)), folder / "out"


def test_training_keeps_the_best_and_the_checkpoints_asked_for(
    trained: tuple[Any, Path], made: Path
) -> None:
    result, out = trained
    losses = {row["step"]: row["valid/eval_loss"] for row in result.tables["steps"]}
    assert set(losses) == {"start", "10", "20", "28"}
    assert losses["20"] < losses["10"] < losses["start"]
    assert result.metrics["kept"] == f"step {min(losses, key=lambda step: losses[step])}"
    assert result.metrics["samples"] == 97
    weights = {}
    for name in ("model", "checkpoint-10", "checkpoint-20"):
        assert read_task_name(out / name) == "countdown"
        from safetensors.torch import load_file

        weights[name] = load_file(out / name / "model.safetensors")[
            "model.layers.0.self_attn.q_proj.weight"
        ]
    assert not torch.equal(weights["checkpoint-10"], weights["checkpoint-20"])
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(out / "model")
    assert AutoTokenizer.from_pretrained(out / "model").chat_template


def answered(context: Context, model: Path, made: Path, **change: Any) -> Any:
    config = dataclasses.replace(
        generate.Config(num_completions=3, temperature=1.0, max_new_tokens=40, dtype="float32"),
        **change,
    )
    given = generate.Inputs(model, made / "prepared/test")
    generate.check(config, given, {})
    generate.JOB.run(context, config, given)
    return read_shards(context.out).to_pylist()


def test_answers_do_not_depend_on_workers(
    trained: tuple[Any, Path], made: Path, context: MakeContext
) -> None:
    _, out = trained
    one, two = context(1, name="one"), context(1, name="two", workers=2, cpus=1.0, batch_tokens=999)
    rows = answered(one, out / "checkpoint-20", made)
    assert rows == answered(two, out / "checkpoint-20", made)
    assert [len(row["answers"]) for row in rows] == [3] * 12
    assert len({answer for row in rows for sample in row["answers"] for answer in sample}) > 12
    evaluated = context(1, name="verified")
    result = evaluate_answers.JOB.run(
        evaluated, evaluate_answers.Config(k=(1, 3, 9)), evaluate_answers.Inputs(one.out)
    )
    assert {"pass@1", "pass@3"} <= set(result.metrics)
    assert "pass@9" not in result.metrics  # of three samples
    verifications = read_shards(evaluated.out / "verifications").to_pylist()
    assert (
        pq.read_schema(next((evaluated.out / "verifications").glob("*.parquet"))).names
        == VERIFICATIONS.names
    )
    flat = [name for row in verifications for sample in row["verifications"] for name in sample]
    assert result.metrics["pass@1"] == pytest.approx(flat.count("correct") / len(flat), abs=1e-5)
    assert sum(row["answers"] for row in result.tables["answers by label"]) == len(flat) == 36
    solved = sum(
        any(sample == ["correct"] for sample in row["verifications"]) for row in verifications
    )
    assert result.metrics["pass@3"] == pytest.approx(solved / 12, abs=1e-5)
    newest = result.tables["unsolved questions by last failure"]
    assert sum(row["questions"] for row in newest) == 12 - solved
    assert all(len(cases) <= 4 for cases in result.cases.values())

    compared = context(1, name="compared")
    config = compare_checkpoints.Config(steps=(10, 20))
    given = compare_checkpoints.Inputs(out, (evaluated.out, evaluated.out))
    compare_checkpoints.check(config, given, {})
    table = compare_checkpoints.JOB.run(compared, config, given).tables["checkpoints"]
    assert [row["step"] for row in table] == ["10", "20"]
    assert table[0]["valid/eval_loss"] > table[1]["valid/eval_loss"]
    assert table[0]["gradient_norm"] > 0
    with pytest.raises(InputError, match="2 given, for 1 checkpoints"):
        compare_checkpoints.check(compare_checkpoints.Config(steps=(10,)), given, {})


def test_a_teacher_teaches_by_distributions_and_by_answers(
    local_ray: None, trained: tuple[Any, Path], made: Path, tmp_path: Path, context: MakeContext
) -> None:
    _, out = trained
    said = context(1, name="said")
    config, given = (
        teacher_logprobs.Config(top_k=5, dtype="float32"),
        teacher_logprobs.Inputs(out / "checkpoint-20", made / "prepared/train", made / "base"),
    )
    teacher_logprobs.check(config, given, {})
    assert teacher_logprobs.JOB.run(said, config, given).metrics["samples"] == 97
    one = SftTask(
        WorkerInfo(0, 1, "cpu"),
        dataclasses.replace(FAST, ce_weight=0.5),
        inputs(made, teacher=said.out),
        Resources(1, 1.0, 0.0),
    )
    loss = one.loss(one.batch(0, 0).microbatches[0])
    assert torch.isfinite(loss)
    with pytest.raises(InputError, match="has no distributions for sample"):
        SftTask(
            WorkerInfo(0, 1, "cpu"),
            FAST,
            dataclasses.replace(inputs(made, teacher=said.out), train=made / "prepared/test"),
            Resources(1, 1.0, 0.0),
        )

    # The correct answers of a teacher become samples, others do not.
    rows = read_shards(made / "prepared/train", SAMPLES.names).to_pylist()
    completions = tmp_path / "completions"
    write_task_name(completions, "countdown")
    import pyarrow as pa

    from ratchet.data.tables import write_table
    from ratchet.data.tasks.answers import COMPLETIONS

    for path in sorted((made / "prepared/train").glob("*.parquet")):
        own = pq.read_table(path).to_pylist()
        answers = [
            {
                "id": row["id"],
                "questions": row["questions"],
                "gold": row["gold"],
                "answers": [["no"], row["targets"], row["targets"]]
                if i % 2
                else [["no"], ["no"], row["targets"]],
                "truncated": [[False], [True], [False]] if i % 2 else [[False], [False], [True]],
            }
            for i, row in enumerate(own)
        ]
        write_table(completions / path.name, pa.Table.from_pylist(answers, COMPLETIONS))
    kept = context(1, name="kept")
    result = rejection_sample.JOB.run(
        kept,
        rejection_sample.Config(max_per_sample=2),
        rejection_sample.Inputs(completions, made / "prepared/train"),
    )
    found = read_shards(kept.out, SAMPLES.names).to_pylist()
    expected = [row for i, row in enumerate(rows) if i % 10 % 2]
    assert [row["targets"] for row in found] == [row["targets"] for row in expected]
    assert result.metrics["unsolved"] == 97 - len(expected)
    for path in completions.glob("*.parquet"):
        table = pq.read_table(path).to_pylist()
        write_table(
            path,
            pa.Table.from_pylist(
                [row | {"answers": [["no"]], "truncated": [[False]]} for row in table], COMPLETIONS
            ),
        )
    with pytest.raises(ArtifactError, match="accepts none"):
        rejection_sample.JOB.run(
            context(1, name="none"),
            rejection_sample.Config(),
            rejection_sample.Inputs(completions, made / "prepared/train"),
        )


@pytest.mark.soak
def test_an_adapter_over_a_base_in_4_bits_answers(
    local_ray: None, made: Path, tmp_path: Path, context: MakeContext
) -> None:
    here = context(1, name="lora", retries=0)
    config = dataclasses.replace(
        FAST,
        method="lora",
        quantization="nf4",
        epochs=1,
        dtype="auto",
        metric="accuracy",
        allow_regression=True,
    )
    sft.check(config, inputs(made), {})
    result = run_step(sft.run, here, config, inputs(made))
    first, last = result.tables["epochs"]
    assert last["valid/eval_loss"] < first["valid/eval_loss"]
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapter = here.out / "adapter"
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(made / "base"), adapter)
    worker = Worker(
        generate.Config(max_new_tokens=5),
        generate.Inputs(made / "base", made / "prepared/test", adapter),
        4096,
        "cpu",
    )
    shard = sorted((made / "prepared/test").glob("*.parquet"))[0]
    assert process_shard(worker, shard, tmp_path / "answers.parquet")["rows"] == 10
