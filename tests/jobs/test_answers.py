"""From a task's file to judged checkpoints: prepare_tasks, sft, generate, evaluate_answers, teach, accept."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from data.errors import DataError
from data.tables import read_shards
from data.tasks.answers import VERDICTS
from data.tasks.solver import generate as new_tasks
from data.tasks.task import EXAMPLES, example_of, read_name, write_name
from jobs import (
    accept,
    compare_checkpoints,
    evaluate_answers,
    generate,
    make_countdown,
    make_decoder,
    prepare_tasks,
    sft,
    teach,
)
from jobs.job import BadArtifact, BadInput, Context, Resources
from jobs.trainee import Place

MakeContext = Callable[..., Context]

TINY = make_decoder.Config(hidden=64, layers=2, heads=4, vocabulary=400)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tasks.jsonl, prepared/ and base/."""
    folder = tmp_path_factory.mktemp("countdown")

    def context(name: str) -> Context:
        (folder / name).mkdir()
        (folder / f"{name}-work").mkdir()
        return Context(name, "0" * 64, 1, folder / name, folder / f"{name}-work", Resources(1, 2.0, 0.0))

    make_countdown.run(
        context("tasks"), make_countdown.Config(tasks=120, sizes=(2,), largest=20), make_countdown.Inputs()
    )
    config = prepare_tasks.Config("countdown", shard_rows=10, validation_fraction=0.1)
    given = prepare_tasks.Inputs(folder / "tasks/tasks")
    prepare_tasks.check(config, given)
    result = prepare_tasks.run(context("prepared"), config, given)
    assert [result.metrics[name] for name in ("train", "valid", "test")] == [97, 11, 12]
    make_decoder.run(context("base"), TINY, make_decoder.Inputs(folder / "prepared/train"))
    return folder


def inputs(made: Path, **more: Any) -> sft.Inputs:
    return sft.Inputs(made / "base", made / "prepared/train", made / "prepared/valid", **more)


FAST = sft.Config(
    epochs=2,
    batch=16,
    learning_rate=3e-3,
    method="full",
    valid_rows=4,
    max_new_tokens=40,
    dtype="float32",
    metric="eval_loss",
)


def test_splits_are_disjoint_by_numbers_and_target(made: Path, tmp_path: Path) -> None:
    keys = {}
    for name in ("train", "valid", "test"):
        assert read_name(made / "prepared" / name) == "countdown"
        golds = [json.loads(gold) for gold in read_shards(made / "prepared" / name, ["gold"])["gold"].to_pylist()]
        keys[name] = {(tuple(sorted(gold["nums"])), gold["target"]) for gold in golds}
    assert not keys["train"] & keys["test"]
    assert not keys["train"] & keys["valid"]
    # A test file's tasks are left out of training, in whatever order their numbers stand.
    lines = (made / "tasks/tasks/tasks.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines[:10]]
    test = tmp_path / "test.jsonl"
    test.write_text("".join(json.dumps(row | {"nums": row["nums"][::-1]}) + "\n" for row in rows))
    (out := tmp_path / "out").mkdir()
    context = Context("prepare", "0" * 64, 1, out, tmp_path, Resources(1, 2.0, 0.0))
    result = prepare_tasks.run(
        context, prepare_tasks.Config("countdown"), prepare_tasks.Inputs(made / "tasks/tasks", test)
    )
    assert result.metrics["also in test, left out"] == 10
    assert result.metrics["test"] == 10


def test_a_wrong_target_is_named_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"nums": [1, 2], "target": 3}\n{"nums": [1, 2], "target": 5, "solution": "1 + 2"}\n')
    with pytest.raises(DataError, match=r"tasks.jsonl:2: the judge of countdown says equation_not_balanced"):
        prepare_tasks.check(prepare_tasks.Config("countdown"), prepare_tasks.Inputs(file))
    file.write_text("\n")
    with pytest.raises(BadInput, match="no examples"):
        prepare_tasks.check(prepare_tasks.Config("countdown"), prepare_tasks.Inputs(file))
    with pytest.raises(DataError, match="expected one of countdown"):
        prepare_tasks.check(prepare_tasks.Config("counting"), prepare_tasks.Inputs(file))


def gradient(
    made: Path, tmp_path: Path, workers: int, micro_batch: int | None = None, **change: Any
) -> tuple[float, dict[str, Any]]:
    """(loss, gradients) of a step over workers that run one after the other, as their mean."""
    config = dataclasses.replace(FAST, **change)
    resources = Resources(workers, 1.0, 0.0, micro_batch=micro_batch)
    total, sums = 0.0, {}
    for rank in range(workers):
        one = sft.Trainee(Place(rank, workers, "cpu"), config, inputs(made), resources, tmp_path / "lengths.json")
        for part in one.parts(1, 2):
            loss, _ = part()
            loss.backward()
            total += float(loss.detach()) / workers
        for name, parameter in one.model.named_parameters():
            if parameter.grad is not None:
                sums[name] = sums.get(name, 0) + parameter.grad / workers
    return total, sums


@pytest.mark.parametrize(
    "change",
    [
        {"workers": 2},
        {"workers": 4},
        {"workers": 1, "micro_batch": 3},
        {"workers": 2, "packing": True, "max_length": 300},
    ],
    ids=["2", "4", "micro", "packed"],
)
def test_workers_micro_batches_and_packing_change_nothing(made: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    loss, gradients = gradient(made, tmp_path, 1)
    found, others = gradient(made, tmp_path, **change)
    assert found == pytest.approx(loss, rel=1e-5)
    scale = max(float(value.abs().max()) for value in gradients.values())
    assert set(others) == set(gradients)
    for name, value in gradients.items():
        torch.testing.assert_close(others[name], value, rtol=1e-4, atol=1e-5 * scale, msg=name)
    assert json.loads((tmp_path / "lengths.json").read_text())["examples"] == 97


def test_what_is_too_long_is_left_out_whole_and_counted(made: Path, tmp_path: Path) -> None:
    plain = sft.Trainee(Place(0, 1, "cpu"), FAST, inputs(made), Resources(1, 1.0, 0.0), tmp_path / "lengths.json")
    sizes = sorted(len(one.ids) for one in plain.examples)
    limit = sizes[40]
    config = dataclasses.replace(FAST, max_length=limit)
    sft.Trainee(Place(0, 1, "cpu"), config, inputs(made), Resources(1, 1.0, 0.0), tmp_path / "lengths.json")
    fit = sum(size <= limit for size in sizes)
    assert json.loads((tmp_path / "lengths.json").read_text()) == {
        "examples": fit,
        "left out": 97 - fit,
        "longest": limit,
    }
    config = dataclasses.replace(FAST, max_length=4)
    with pytest.raises(BadInput, match=r"all 97 examples of .* are longer"):
        sft.Trainee(Place(0, 1, "cpu"), config, inputs(made), Resources(1, 1.0, 0.0), tmp_path / "lengths.json")


def test_a_share_for_a_teacher_needs_one(made: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(FAST, share=0.5)
    sft.check(config, inputs(made))  # at plan time the teacher's step may be still to come
    with pytest.raises(BadInput, match=r"share: 0.5 given, without a teacher"):
        sft.Trainee(Place(0, 1, "cpu"), config, inputs(made), Resources(1, 1.0, 0.0), tmp_path / "lengths.json")


@pytest.fixture(scope="module")
def trained(local_ray: None, made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("sft")
    (folder / "out").mkdir()
    (folder / "work").mkdir()
    context = Context("sft", "a" * 64, 1, folder / "out", folder / "work", Resources(1, 2.0, 0.0, retries=0))
    config = dataclasses.replace(FAST, epochs=4, checkpoints=(10, 20))
    sft.check(config, inputs(made))
    return sft.run(context, config, inputs(made)), folder / "out"


def test_training_keeps_the_best_and_the_checkpoints_asked_for(trained: tuple[Any, Path], made: Path) -> None:
    result, out = trained
    losses = {row["step"]: row["valid eval_loss"] for row in result.tables["steps"]}
    assert set(losses) == {"start", "10", "20", "28"}
    assert losses["20"] < losses["10"] < losses["start"]
    assert result.metrics["kept"] == f"step {min(losses, key=lambda step: losses[step])}"
    assert result.metrics["examples"] == 97
    weights = {}
    for name in ("model", "checkpoint-10", "checkpoint-20"):
        assert read_name(out / name) == "countdown"
        from safetensors.torch import load_file

        weights[name] = load_file(out / name / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    assert not torch.equal(weights["checkpoint-10"], weights["checkpoint-20"])
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(out / "model")
    assert AutoTokenizer.from_pretrained(out / "model").chat_template


def answered(context: Context, model: Path, made: Path, **change: Any) -> Any:
    config = dataclasses.replace(
        generate.Config(samples=3, temperature=1.0, max_new_tokens=40, dtype="float32"), **change
    )
    given = generate.Inputs(model, made / "prepared/test")
    generate.check(config, given)
    generate.run(context, config, given)
    return read_shards(context.out).to_pylist()


def test_answers_are_the_same_for_any_number_of_workers_and_are_judged(
    trained: tuple[Any, Path], made: Path, context: MakeContext
) -> None:
    _, out = trained
    one, two = context(1, name="one"), context(1, name="two", workers=2, cpus=1.0, batch_tokens=999)
    rows = answered(one, out / "checkpoint-20", made)
    assert rows == answered(two, out / "checkpoint-20", made)
    assert [len(row["answers"]) for row in rows] == [3] * 12
    assert len({answer for row in rows for sample in row["answers"] for answer in sample}) > 12
    judged = context(1, name="judged")
    result = evaluate_answers.run(judged, evaluate_answers.Config(k=(1, 3, 9)), evaluate_answers.Inputs(one.out))
    assert {"pass@1", "pass@3"} <= set(result.metrics)
    assert "pass@9" not in result.metrics  # of three samples
    verdicts = read_shards(judged.out / "verdicts").to_pylist()
    assert pq.read_schema(next((judged.out / "verdicts").glob("*.parquet"))).names == VERDICTS.names
    flat = [name for row in verdicts for sample in row["verdicts"] for name in sample]
    assert result.metrics["pass@1"] == pytest.approx(flat.count("correct") / len(flat), abs=1e-5)
    assert sum(row["answers"] for row in result.tables["verdicts"]) == len(flat) == 36
    solved = sum(any(sample == ["correct"] for sample in row["verdicts"]) for row in verdicts)
    assert result.metrics["pass@3"] == pytest.approx(solved / 12, abs=1e-5)
    newest = result.tables["questions without a correct answer, by their newest one"]
    assert sum(row["questions"] for row in newest) == 12 - solved
    assert all(len(cards) <= 4 for cards in result.examples.values())

    compared = context(1, name="compared")
    config = compare_checkpoints.Config(steps=(10, 20))
    given = compare_checkpoints.Inputs(out, (judged.out, judged.out))
    compare_checkpoints.check(config, given)
    table = compare_checkpoints.run(compared, config, given).tables["checkpoints"]
    assert [row["step"] for row in table] == ["10", "20"]
    assert table[0]["eval loss"] > table[1]["eval loss"]
    assert table[0]["gradient norm"] > 0
    with pytest.raises(BadInput, match="2 given, for 1 checkpoints"):
        compare_checkpoints.check(compare_checkpoints.Config(steps=(10,)), given)


def test_an_adapter_of_another_task_does_not_answer(made: Path, tmp_path: Path, context: MakeContext) -> None:
    write_name(tmp_path / "adapter", "gsm8k")
    given = generate.Inputs(made / "base", made / "prepared/test", tmp_path / "adapter")
    with pytest.raises(BadInput, match=r"generate.adapter: .* was trained on task gsm8k"):
        generate.run(context(), generate.Config(), given)
    write_name(tmp_path / "model", "gsm8k")
    given = generate.Inputs(tmp_path / "model", made / "prepared/test")
    with pytest.raises(BadInput, match=r"generate.model: .* was trained on task gsm8k"):
        generate.run(context(), generate.Config(), given)


def test_a_teacher_teaches_by_distributions_and_by_answers(
    local_ray: None, trained: tuple[Any, Path], made: Path, tmp_path: Path, context: MakeContext
) -> None:
    _, out = trained
    said = context(1, name="said")
    config, given = (
        teach.Config(top=5, dtype="float32"),
        teach.Inputs(out / "checkpoint-20", made / "prepared/train", made / "base"),
    )
    teach.check(config, given)
    assert teach.run(said, config, given).metrics["examples"] == 97
    one = sft.Trainee(
        Place(0, 1, "cpu"),
        dataclasses.replace(FAST, share=0.5),
        inputs(made, teacher=said.out),
        Resources(1, 1.0, 0.0),
        tmp_path / "lengths.json",
    )
    loss, _ = one.parts(0, 0)[0]()
    assert torch.isfinite(loss)
    with pytest.raises(BadInput, match="says nothing on example"):
        sft.Trainee(
            Place(0, 1, "cpu"),
            FAST,
            dataclasses.replace(inputs(made, teacher=said.out), train=made / "prepared/test"),
            Resources(1, 1.0, 0.0),
            tmp_path / "lengths.json",
        )

    # A teacher that knows: its accepted answers become examples, others do not.
    rows = read_shards(made / "prepared/train", EXAMPLES.names).to_pylist()
    completions = tmp_path / "completions"
    write_name(completions, "countdown")
    import pyarrow as pa

    from data.tables import write_table
    from data.tasks.answers import COMPLETIONS

    for path in sorted((made / "prepared/train").glob("*.parquet")):
        own = pq.read_table(path).to_pylist()
        answers = [
            {
                "id": row["id"],
                "gold": row["gold"],
                "answers": [["no"], row["targets"], row["targets"]] if i % 2 else [["no"]] * 3,
            }
            for i, row in enumerate(own)
        ]
        write_table(completions / path.name, pa.Table.from_pylist(answers, COMPLETIONS))
    kept = context(1, name="kept")
    result = accept.run(kept, accept.Config(most=2), accept.Inputs(completions, made / "prepared/train"))
    found = read_shards(kept.out, EXAMPLES.names).to_pylist()
    expected = [row for i, row in enumerate(rows) if i % 10 % 2]
    assert [row["targets"] for row in found] == [row["targets"] for row in expected]
    assert result.metrics["without an accepted answer"] == 97 - len(expected)
    for path in completions.glob("*.parquet"):
        table = pq.read_table(path).to_pylist()
        write_table(path, pa.Table.from_pylist([row | {"answers": [["no"]]} for row in table], COMPLETIONS))
    with pytest.raises(BadArtifact, match="accepts none"):
        accept.run(context(1, name="none"), accept.Config(), accept.Inputs(completions, made / "prepared/train"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": 0}, "batch: 0 given"),
        ({"quantization": "nf4"}, "lora with nf4"),
        ({"checkpoints": (30, 10)}, "rising numbers"),
        ({"checkpoints": (10,), "eval_steps": 5}, "no eval_steps beside it"),
        ({"share": 1.5}, "share: 1.5 given"),
        ({"metric": "mrr"}, "accuracy or eval_loss"),
        ({"valid_rows": 0, "metric": "accuracy"}, "eval_loss where valid_rows is 0"),
        ({"zero_stage": 3}, "2 or less"),
    ],
)
def test_wrong_settings_are_named(made: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        sft.check(dataclasses.replace(FAST, **change), inputs(made))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": 0}, "1 or more"),
        ({"samples": 4, "temperature": 0.0}, "1 at temperature 0"),
        ({"top_p": 0.0}, "top_p: 0.0 given"),
        ({"max_new_tokens": 0}, "max_new_tokens: 0 given"),
    ],
)
def test_wrong_sampling_is_named(made: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        generate.check(
            dataclasses.replace(generate.Config(), **change), generate.Inputs(made / "base", made / "prepared/test")
        )


def test_new_tasks_need_room() -> None:
    with pytest.raises(ValueError, match="tasks asked for"):
        new_tasks(50, (1,), 3, (1, 3), 0)


def passage(number: int) -> dict[str, Any]:
    asked = [
        {
            "id": f"{number}-{q}",
            "question": f"Which is number {q}?",
            "answers": [{"text": f"word{q}"}, {"text": "word"}],
        }
        for q in range(3)
    ]
    return {"paragraphs": [{"context": f"Passage {number}: word0 word1 word2. " * 4, "qas": asked}]}


@pytest.mark.parametrize("strategy", ["batch", "sequential", "together"])
def test_a_passages_questions_and_their_tokens(made: Path, tmp_path: Path, context: MakeContext, strategy: str) -> None:
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"data": [passage(number) for number in range(8)]}))
    config, given = prepare_tasks.Config(f"squad-{strategy}", max_test=2, test_fraction=0.4), prepare_tasks.Inputs(file)
    prepare_tasks.check(config, given)
    prepared = context(1, name="prepare")
    prepare_tasks.run(prepared, config, given)
    rows = read_shards(prepared.out / "test", EXAMPLES.names).to_pylist()
    assert len({row["group"] for row in rows}) == 2
    assert len(rows) == (6 if strategy == "batch" else 2)
    asked = generate.Inputs(made / "base", prepared.out / "test")
    worker = generate.Worker(generate.Config(max_new_tokens=6, timed=True, dtype="float32"), asked, 4096, "cpu")
    (shard,) = (prepared.out / "test").glob("*.parquet")
    write_name(tmp_path / "said", f"squad-{strategy}")
    told: list[int] = []
    worker(shard, tmp_path / "said/shard-00000.parquet", lambda rows, tokens=0: told.append(rows))
    assert told[-1] == len(rows)
    judged = context(1, name="judged")
    found = evaluate_answers.run(judged, evaluate_answers.Config(), evaluate_answers.Inputs(tmp_path / "said")).metrics
    assert found["questions"] == 6
    assert found["questions a group"] == 3
    assert found["latency"] > 0
    assert found["em"] == 0 <= found["f1"] <= 1
    talks = worker.decoder.conversations
    whole = [len(talks.prompt(row["system"], row["questions"][:1], [])) for row in rows]
    if strategy == "together":
        assert found["prompt tokens"] == found["prompt tokens, api"] == pytest.approx(sum(whole) / 2)
    elif strategy == "batch":
        # A service counts each prompt whole; the passage itself is read once.
        assert found["prompt tokens, api"] == pytest.approx(sum(whole) / 2)
        passage_tokens = [generate.shared_tokens(example_of(row), worker.decoder.tokenizer) for row in rows]
        assert passage_tokens[0] > 40
        assert found["prompt tokens"] == pytest.approx((sum(whole) - 2 * (passage_tokens[0] + passage_tokens[3])) / 2)
    else:
        assert found["prompt tokens"] < 1.5 * sum(whole) / 2
        assert found["prompt tokens, api"] > 2.5 * sum(whole) / 2


@pytest.mark.slow
def test_an_adapter_over_a_base_in_4_bits_answers(
    local_ray: None, made: Path, tmp_path: Path, context: MakeContext
) -> None:
    here = context(1, name="lora", retries=0)
    config = dataclasses.replace(
        FAST, method="lora", quantization="nf4", epochs=1, dtype="auto", metric="accuracy", allow_regression=True
    )
    sft.check(config, inputs(made))
    result = sft.run(here, config, inputs(made))
    first, last = result.tables["epochs"]
    assert last["valid eval_loss"] < first["valid eval_loss"]
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapter = here.out / "adapter"
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(made / "base"), adapter)
    worker = generate.Worker(
        generate.Config(max_new_tokens=5), generate.Inputs(made / "base", made / "prepared/test", adapter), 4096, "cpu"
    )
    shard = sorted((made / "prepared/test").glob("*.parquet"))[0]
    assert worker(shard, tmp_path / "answers.parquet", lambda rows, tokens=0: None)["rows"] == 10
