"""Jobs of answering systems without a cluster: splits, gradients, prompts, and settings that cannot work."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from countdown_files import FAST, inputs, make_countdown_files
from shard_work import process_shard

from ratchet.data.tables import read_shards, write_table
from ratchet.data.tasks.answers import TEACHER_LOGPROBS
from ratchet.data.tasks.solver import generate_tasks
from ratchet.data.tasks.task import SAMPLES, read_task_name, row_to_sample, write_task_name
from ratchet.errors import DataError, InputError, ModelError
from ratchet.jobs.answers import (
    evaluate_answers,
    generate,
    prepare_tasks,
    rejection_sample,
    sft,
    teacher_logprobs,
)
from ratchet.jobs.answers.answering import Worker, count_shared_tokens
from ratchet.jobs.answers.sft_training import SftTask, Teacher
from ratchet.jobs.answers.token_table import TOKENS, TokenTable
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models import loading
from ratchet.models.decoder import decoder
from ratchet.orchestrator.job_interface import Context, Resources, Result
from ratchet.orchestrator.job_interface.settings import validate

# They plan whole recipes, and prepare their data.
pytestmark = pytest.mark.slow

MakeContext = Callable[..., Context]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_countdown_files(tmp_path_factory.mktemp("countdown"))


def test_splits_are_disjoint_by_numbers_and_target(made: Path, tmp_path: Path) -> None:
    keys = {}
    for name in ("train", "valid", "test"):
        assert read_task_name(made / "prepared" / name) == "countdown"
        golds = [
            json.loads(gold)
            for gold in read_shards(made / "prepared" / name, ["gold"])["gold"].to_pylist()
        ]
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
    result = prepare_tasks.JOB.run(
        context, prepare_tasks.Config("countdown"), prepare_tasks.Inputs(made / "tasks/tasks", test)
    )
    assert result.metrics["also_in_test"] == 10
    assert result.metrics["test"] == 10


def test_a_wrong_target_is_named_before_anything_runs(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(
        '{"nums": [1, 2], "target": 3}\n{"nums": [1, 2], "target": 5, "solution": "1 + 2"}\n'
    )
    with pytest.raises(
        DataError, match=r"tasks.jsonl:2: the verifier of countdown returns equation_not_balanced"
    ):
        prepare_tasks.check(prepare_tasks.Config("countdown"), prepare_tasks.Inputs(file), {})
    file.write_text("\n")
    with pytest.raises(InputError, match="only blank lines"):
        prepare_tasks.check(prepare_tasks.Config("countdown"), prepare_tasks.Inputs(file), {})
    with pytest.raises(DataError, match="expected one of countdown"):
        prepare_tasks.check(prepare_tasks.Config("counting"), prepare_tasks.Inputs(file), {})
    for task, limits in (("countdown", (5, 10)), ("squad-batch", (10, 5))):
        config = prepare_tasks.Config(task, questions_per_group=limits)
        with pytest.raises(InputError, match=r"questions_per_group: \d+,\d+ given, with task"):
            prepare_tasks.check(config, prepare_tasks.Inputs(file), {})


def gradient(
    made: Path, workers: int, micro_batch_size: int | None = None, **change: Any
) -> tuple[float, dict[str, Any]]:
    """(loss, gradients) of a step over workers that run one after the other, as their mean."""
    config = dataclasses.replace(FAST, **change)
    resources = Resources(workers, 1.0, 0.0, micro_batch_size=micro_batch_size)
    total, sums = 0.0, {}
    for rank in range(workers):
        one = SftTask(WorkerInfo(rank, workers, "cpu"), config, inputs(made), resources)
        for microbatch in one.batch(1, 2).microbatches:
            loss = one.loss(microbatch)
            loss.backward()
            total += float(loss.detach()) / workers
        for name, parameter in one.model.named_parameters():
            if parameter.grad is not None:
                sums[name] = sums.get(name, 0) + parameter.grad / workers
    return total, sums


@pytest.fixture(scope="module")
def whole(made: Path) -> tuple[float, dict[str, Any]]:
    """(loss, gradients) of the same step on one worker."""
    return gradient(made, 1)


@pytest.mark.parametrize(
    "change",
    [{"workers": 2}, {"workers": 4}, {"workers": 1, "micro_batch_size": 3}],
    ids=["2", "4", "micro"],
)
def test_workers_and_micro_batches_change_nothing(
    made: Path, whole: tuple[float, dict[str, Any]], change: dict[str, Any]
) -> None:
    check_equal(whole, gradient(made, **change))


def test_a_teachers_rows_are_found_by_the_samples_ids(tmp_path: Path) -> None:
    tokens = [
        {
            "id": name,
            "labels": labels,
            "ids": list(range(9)),
            "trained": [at >= 9 - labels for at in range(9)],
        }
        for name, labels in (("a", 2), ("b", 3))
    ]
    samples = TokenTable(pa.Table.from_pylist(tokens, TOKENS))
    assert [samples[1].labels, len(samples[1].ids)] == [3, 9]
    rows = [
        {
            "id": name,
            "top_k": 2,
            "token_ids": list(range(at, at + 2 * labels)),
            "logprobs": [-0.5] * 2 * labels,
        }
        for name, labels, at in (("b", 3, 10), ("other", 1, 0), ("a", 2, 20))
    ]
    for number, row in enumerate(rows):
        write_table(
            tmp_path / f"shard-{number:05d}.parquet", pa.Table.from_pylist([row], TEACHER_LOGPROBS)
        )
    teacher = Teacher(tmp_path, samples)
    assert [teacher[0].ids_TK.tolist(), teacher[1].ids_TK.tolist()] == [
        [[20, 21], [22, 23]],
        [[10, 11], [12, 13], [14, 15]],
    ]
    assert teacher[1].logprob_TK.shape == (3, 2)
    write_table(
        tmp_path / "shard-00002.parquet",
        pa.Table.from_pylist([rows[2] | {"token_ids": [1]}], TEACHER_LOGPROBS),
    )
    with pytest.raises(
        InputError,
        match=r"another number of distributions for sample a; expected one for each token",
    ):
        Teacher(tmp_path, samples)
    (tmp_path / "shard-00002.parquet").unlink()
    with pytest.raises(InputError, match=r"has no distributions for sample a"):
        Teacher(tmp_path, samples)


def check_equal(one: tuple[float, dict[str, Any]], other: tuple[float, dict[str, Any]]) -> None:
    loss, gradients = one
    found, others = other
    assert found == pytest.approx(loss, rel=1e-5)
    scale = max(float(value.abs().max()) for value in gradients.values())
    assert set(others) == set(gradients)
    for name, value in gradients.items():
        torch.testing.assert_close(others[name], value, rtol=1e-4, atol=1e-5 * scale, msg=name)


def test_what_is_too_long_is_left_out_whole_and_counted(made: Path) -> None:
    plain = SftTask(WorkerInfo(0, 1, "cpu"), FAST, inputs(made), Resources(1, 1.0, 0.0))
    assert plain.counts["samples"] == 97
    sizes, held_out = (sorted(table.size_N.tolist()) for table in (plain.train, plain.valid))
    limit = sizes[40]
    assert held_out[0] <= limit < held_out[-1]
    config = dataclasses.replace(FAST, max_length=limit)
    cut = SftTask(WorkerInfo(0, 1, "cpu"), config, inputs(made), Resources(1, 1.0, 0.0))
    fit = sum(size <= limit for size in sizes)
    assert cut.counts == {
        "samples": fit,
        "too_long": 97 - fit,
        "valid/too_long": sum(size > limit for size in held_out),
        "longest": limit,
    }
    config = dataclasses.replace(FAST, max_length=4)
    with pytest.raises(InputError, match=r"all 97 samples of .* are longer"):
        SftTask(WorkerInfo(0, 1, "cpu"), config, inputs(made), Resources(1, 1.0, 0.0))


def test_a_ce_weight_below_one_needs_a_teacher(made: Path, context: MakeContext) -> None:
    config = dataclasses.replace(FAST, ce_weight=0.5)
    sft.check(config, inputs(made), {})  # at plan time the teacher's step may be still to come
    with pytest.raises(InputError, match=r"ce_weight: 0.5 given, without a teacher"):
        sft.run(context(), config, inputs(made))


def test_a_teachers_answers_are_found_by_the_samples_ids(
    made: Path, tmp_path: Path, context: MakeContext
) -> None:
    samples, completions = made / "prepared/valid", tmp_path / "completions"
    shutil.copytree(samples, completions)
    for path in completions.glob("*.parquet"):
        rows = pq.read_table(path).to_pylist()
        answered = [row | {"answers": [row["targets"]], "truncated": [[False]]} for row in rows]
        pq.write_table(pa.Table.from_pylist(answered[::-1]), path)
    given = rejection_sample.Config(), rejection_sample.Inputs(completions, samples)
    rejection_sample.JOB.run(kept := context(), *given)
    rows = read_shards(samples).to_pylist()
    assert read_shards(kept.out).to_pylist() == [row | {"id": f"{row['id']}~0"} for row in rows]
    pq.write_table(
        pa.Table.from_pylist([row | {"questions": ["Of another file?"]} for row in answered]), path
    )
    with pytest.raises(
        InputError, match=r"no answer to sample .* of .*; expected answers to these samples"
    ):
        rejection_sample.JOB.run(context(), *given)


def test_what_is_too_long_is_an_error_before_a_model_is_loaded(
    made: Path, context: MakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not hours later, in the last shard: with another limit it is another step."""
    monkeypatch.setattr(decoder, "load", None)
    samples = made / "prepared/train"
    here = dataclasses.replace(context(), holds_resources=True)
    asked = (
        generate.Config(max_prompt_length=3, dtype="float32"),
        generate.Inputs(made / "base", samples),
    )
    with pytest.raises(
        ModelError, match=r"prompt of .* expected at most 3; raise max_prompt_length"
    ):
        generate.JOB.run(here, *asked)
    config = teacher_logprobs.Config(max_length=3, dtype="float32")
    with pytest.raises(
        InputError, match=r"teacher_logprobs.max_length: sample .* expected at most 3; raise it"
    ):
        teacher_logprobs.JOB.run(
            here, config, teacher_logprobs.Inputs(made / "base", samples, made / "base")
        )


def test_an_adapter_of_another_task_does_not_answer(
    made: Path, tmp_path: Path, context: MakeContext
) -> None:
    write_task_name(tmp_path / "adapter", "gsm8k")
    given = generate.Inputs(made / "base", made / "prepared/test", tmp_path / "adapter")
    with pytest.raises(InputError, match=r"generate.adapter: .* was trained on task gsm8k"):
        generate.JOB.run(context(), generate.Config(), given)
    shutil.copytree(made / "base", tmp_path / "model")
    write_task_name(tmp_path / "model", "gsm8k")
    given = generate.Inputs(tmp_path / "model", made / "prepared/test")
    with pytest.raises(InputError, match=r"generate.model: .* was trained on task gsm8k"):
        generate.JOB.run(context(), generate.Config(), given)
    with pytest.raises(InputError, match=r"generate.model: .* was trained on task gsm8k"):
        generate.check(generate.Config(), given, {})
    planned = generate.Inputs(tmp_path / "model", None)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the samples are of task countdown"):
        generate.check(generate.Config(), planned, {"samples": Result({"task": "countdown"})})
    generate.check(
        generate.Config(allow_other_task=True), planned, {"samples": Result({"task": "countdown"})}
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch_size": 0}, "batch_size: 0 given"),
        ({"quantization": "nf4"}, "lora with nf4"),
        ({"checkpoints": (30, 10)}, "increasing training steps"),
        ({"checkpoints": (10,), "eval_steps": 5}, "none together with eval_steps"),
        ({"ce_weight": 1.5}, "ce_weight: 1.5 given"),
        ({"metric": "mrr"}, "one of accuracy, eval_loss"),
        ({"valid_samples": 0, "metric": "accuracy"}, "eval_loss where valid_samples is 0"),
    ],
)
def test_wrong_settings_are_named(made: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        sft.check(validate(sft.Config, vars(FAST) | change, "sft"), inputs(made), {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_completions": 0}, ">= 1"),
        ({"num_completions": 4, "temperature": 0.0}, "1 at temperature 0"),
        ({"top_p": 0.0}, "top_p: 0.0 given; expected > 0"),
        ({"max_new_tokens": 0}, "max_new_tokens: 0 given"),
    ],
)
def test_wrong_sampling_is_named(made: Path, change: dict[str, Any], said: str) -> None:
    given = generate.Inputs(made / "base", made / "prepared/test")
    with pytest.raises(InputError, match=said):
        generate.check(validate(generate.Config, change, "generate"), given, {})


def test_new_tasks_need_room() -> None:
    with pytest.raises(ValueError, match="tasks asked for"):
        generate_tasks(50, (1,), 3, (1, 3), 0)


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


@pytest.mark.parametrize("strategy", ["batch", "sequential"])
def test_a_passages_questions_and_their_tokens(
    made: Path, tmp_path: Path, context: MakeContext, strategy: str
) -> None:
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"data": [passage(number) for number in range(8)]}))
    config, given = (
        prepare_tasks.Config(f"squad-{strategy}", max_test=2, test_fraction=0.4),
        prepare_tasks.Inputs(file),
    )
    prepare_tasks.check(config, given, {})
    prepared = context(1, name="prepare")
    prepare_tasks.JOB.run(prepared, config, given)
    rows = read_shards(prepared.out / "test", SAMPLES.names).to_pylist()
    assert len({row["group"] for row in rows}) == 2
    assert len(rows) == (6 if strategy == "batch" else 2)
    asked = generate.Inputs(made / "base", prepared.out / "test")
    worker = Worker(
        generate.Config(max_new_tokens=6, measure_latency=True, dtype="float32"), asked, 4096, "cpu"
    )
    (shard,) = (prepared.out / "test").glob("*.parquet")
    write_task_name(tmp_path / "said", f"squad-{strategy}")
    told: list[int] = []
    process_shard(
        worker,
        shard,
        tmp_path / "said/shard-00000.parquet",
        lambda rows, tokens=0: told.append(rows),
    )
    assert told[-1] == len(rows)
    evaluated = context(1, name="verified")
    found = evaluate_answers.JOB.run(
        evaluated, evaluate_answers.Config(), evaluate_answers.Inputs(tmp_path / "said")
    ).metrics
    assert found["questions"] == 6
    assert found["questions_per_group"] == 3
    assert found["latency"] > 0
    assert found["em"] == 0 <= found["f1"] <= 1
    talks = worker.decoder.conversations
    whole = [
        len(talks.tokenize_sample(row["system"], row["questions"][:1], []).ids) for row in rows
    ]
    if strategy == "batch":
        # A service counts each prompt whole; the passage itself is read once.
        assert found["prompt_tokens_api"] == pytest.approx(sum(whole) / 2)
        passage_tokens = [
            count_shared_tokens(row_to_sample(row), worker.decoder.tokenizer) for row in rows
        ]
        assert passage_tokens[0] > 40
        assert found["prompt_tokens"] == pytest.approx(
            (sum(whole) - 2 * (passage_tokens[0] + passage_tokens[3])) / 2
        )
    else:
        assert found["prompt_tokens"] < 1.5 * sum(whole) / 2
        assert found["prompt_tokens_api"] > 2.5 * sum(whole) / 2


@pytest.mark.parametrize(("method", "rate"), [("lora", 1e-4), ("full", None)])
def test_countdown_trains_all_weights_at_their_own_rate(
    method: str, rate: float | None, tmp_path: Path
) -> None:
    from ratchet.orchestrator.recipe import Settings, build, find

    steps, _, _ = build(find("countdown"), Settings({"base": str(tmp_path), "method": method}))
    (training,) = (step for step in steps if step.job.name == "sft")
    assert training.config.learning_rate == rate


def test_current_best_over_the_trained_base(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base is loaded once."""
    where, resources = (WorkerInfo(0, 1, "cpu"), Resources(1, 1.0, 0.0))
    best = SftTask(where, dataclasses.replace(FAST, method="lora"), inputs(made), resources)
    with torch.no_grad():
        for name, weight in best.model.named_parameters():
            if "lora_B" in name:
                weight.add_(
                    torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) / 5
                )
    best.save(tmp_path)
    expected = best.evaluate().metrics
    loaded: list[str] = []
    open_model = loading.open_model
    monkeypatch.setattr(
        decoder, "open_model", lambda *a, **k: loaded.append("base") or open_model(*a, **k)
    )
    current = dataclasses.replace(inputs(made), current_best=tmp_path)
    config = dataclasses.replace(FAST, method="lora", lora_r=4)
    task = SftTask(where, config, current, resources)
    own = task.evaluate().metrics
    assert task.evaluate_start().metrics == pytest.approx(expected, abs=1e-6)
    assert task.evaluate().metrics == own != expected
    assert loaded == ["base"]


def test_a_model_of_all_weights_has_no_adapter_to_improve_on(made: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(FAST, method="full")
    for given, parents in ((tmp_path, {}), (None, {"current_best": Result()})):
        current = dataclasses.replace(inputs(made), current_best=given)
        with pytest.raises(
            InputError,
            match=r"sft\.current_best: an adapter given, with method=full; expected none",
        ):
            sft.check(config, current, parents)


@pytest.mark.parametrize(
    ("name", "value"),
    [("final_logit_softcapping", 30.0), ("logits_scaling", 8.0), ("lm_head_multiplier", 0.5)],
)
def test_heads_that_cap_or_scale_their_logits_are_refused(
    made: Path, tmp_path: Path, name: str, value: float
) -> None:
    """As those of Gemma 2 and Granite: the losses would be those of other logits."""
    base = shutil.copytree(inputs(made).base, tmp_path / "base")
    shape = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(shape | {name: value}))
    with pytest.raises(
        ModelError, match=f"{name}={value} in config.json; expected a plain linear head"
    ):
        sft.check(FAST, dataclasses.replace(inputs(made), base=base), {})
    with pytest.raises(
        ModelError, match=f"{name}={value} in config.json; expected a plain linear head"
    ):
        teacher_logprobs.check(
            teacher_logprobs.Config(), teacher_logprobs.Inputs(base, made, inputs(made).base), {}
        )
