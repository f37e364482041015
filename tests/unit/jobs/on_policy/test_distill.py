"""distill without a cluster: the divergence against plain torch, on-policy steps, teachers, wrong settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from distill_files import FAST, make_distill_files, make_other_teacher
from model_shapes import save_shape
from tiny_models import save_model

from ratchet.data.tables import write_shards
from ratchet.data.tasks.task import SAMPLES, Sample, sample_to_row, write_task_name
from ratchet.errors import InputError, ModelError
from ratchet.jobs.answers import sft
from ratchet.jobs.on_policy import distill
from ratchet.jobs.on_policy.distill_training import DistillTask
from ratchet.jobs.on_policy.draws import draw_on_policy
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.orchestrator.job_interface import Resources, Result
from ratchet.orchestrator.job_interface.settings import validate


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> distill.Inputs:
    return make_distill_files(tmp_path_factory.mktemp("distill"))


def make_task(config: distill.Config, inputs: distill.Inputs, **resources: Any) -> DistillTask:
    options = distill.make_options(config)
    asked = Resources(workers=1, cpus=1.0, gpus=0.0, **resources)
    return DistillTask(WorkerInfo(0, 1, "cpu"), options, inputs, asked)


def compute_divergence(
    task: DistillTask, row: Any, beta: float, temperature: float
) -> torch.Tensor:
    """The sum of the divergence over an answer, by its definition, in float64 and from whole logits."""
    chances = []
    for decoder, tokens in ((task.teacher, row.teacher), (task.decoder, row.student)):
        start = tokens.trained.index(True)
        logits = decoder.model(input_ids=torch.tensor([tokens.ids])).logits[0]
        kept = logits[start - 1 : start - 1 + tokens.labels, task.shared_S].double()
        chances.append(torch.softmax(kept / temperature, -1))
    teacher, student = chances
    teacher = teacher.detach()
    if beta == 0:
        return (teacher * (teacher / student).log()).sum()
    if beta == 1:
        return (student * (student / teacher).log()).sum()
    mixture = beta * teacher + (1 - beta) * student
    first = (teacher * (teacher / mixture).log()).sum()
    second = (student * (student / mixture).log()).sum()
    return beta * first + (1 - beta) * second


@pytest.mark.parametrize("micro_batch_size", [None, 1])
@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("lmbda", [0.0, 1.0])
def test_a_training_step_is_that_of_the_paper(
    inputs: distill.Inputs, beta: float, lmbda: float, micro_batch_size: int | None
) -> None:
    config = dataclasses.replace(FAST, lmbda=lmbda, beta=beta, teacher_temperature=1.5)
    task = make_task(config, inputs, micro_batch_size=micro_batch_size)
    batch = task.batch(0, 1)
    rows = [row for part in batch.microbatches for row in part.rows]
    assert len(rows) == 4
    if micro_batch_size:
        assert len(batch.microbatches) == 4
    loss = torch.zeros(())
    for part in batch.microbatches:
        loss = loss + task.loss(part)
    loss.backward()
    found = {name: weight.grad.clone() for name, weight in task.model.named_parameters()}
    task.model.zero_grad()
    labels = sum(row.student.labels for row in rows)
    expected = torch.zeros((), dtype=torch.float64)
    for row in rows:
        expected = expected + compute_divergence(task, row, beta, 1.5) / labels
    expected.backward()
    assert float(loss) == pytest.approx(float(expected), rel=1e-4)
    assert float(loss) > 1e-3
    for name, weight in task.model.named_parameters():
        assert weight.grad is not None
        assert torch.allclose(found[name], weight.grad, rtol=1e-3, atol=1e-6), name
    assert all(weight.grad is None for weight in task.teacher.model.parameters())
    assert not task.teacher.model.training


def test_answers_are_the_students_or_the_targets(inputs: distill.Inputs) -> None:
    own = make_task(dataclasses.replace(FAST, lmbda=1.0), inputs)
    given = make_task(dataclasses.replace(FAST, lmbda=0.0), inputs, micro_batch_size=1)
    decode = own.decoder.conversations.decode
    texts: dict[str, list[str]] = {"own": [], "given": []}
    for name, task in (("own", own), ("given", given)):
        for part in task.batch(0, 0).microbatches:
            for row in part.rows:
                start = row.student.trained.index(True)
                ids = row.student.ids[start : start + row.student.labels]
                texts[name].append(decode(ids))
                assert row.teacher.ids[-len(ids) :] == ids
                assert row.teacher.labels == len(ids) <= (6 if name == "own" else 3)
    assert texts["given"] == ["so"] * 4
    assert "so" not in texts["own"]
    assert len(set(texts["own"])) == 4
    # They depend on the seed and the draw alone.
    again = make_task(dataclasses.replace(FAST, lmbda=1.0), inputs)
    [part] = again.batch(0, 0).microbatches
    [before] = own.batch(0, 0).microbatches
    assert part == before
    assert own.counts == {"samples": 7, "too_long": 0, "valid/too_long": 0, "on_policy_steps": 6}


def test_steps_are_on_policy_with_probability_lambda() -> None:
    for lmbda in (0.0, 0.3, 1.0):
        assert draw_on_policy(10_000, lmbda, 3).mean() == pytest.approx(lmbda, abs=0.02)
    assert (draw_on_policy(50, 0.5, 3) == draw_on_policy(50, 0.5, 3)).all()


def test_the_held_out_loss_is_that_of_the_targets(inputs: distill.Inputs) -> None:
    task = make_task(dataclasses.replace(FAST, lmbda=1.0, beta=0.0), inputs)
    total, labels = 0.0, 0
    for number in range(4):
        prompt = task.valid_prompts[number].as_py()
        sample = task.valid[number]
        start = sample.trained.index(True)
        row = type("Row", (), {})()
        row.student = sample
        answer = sample.ids[start : start + sample.labels]
        row.teacher = dataclasses.replace(
            sample, ids=prompt + answer, trained=[False] * len(prompt) + [True] * len(answer)
        )
        total += float(compute_divergence(task, row, 0.0, 1.0))
        labels += sample.labels
    found = task.evaluate().metrics
    assert found["eval_loss"] == pytest.approx(total / labels, rel=1e-4)
    assert 0 <= found["accuracy"] <= 1


def test_a_teacher_may_have_more_tokens_and_another_template(
    inputs: distill.Inputs, tmp_path: Path
) -> None:
    given = make_other_teacher(inputs, tmp_path / "teacher")
    distill.check(FAST, given, {})
    task = make_task(dataclasses.replace(FAST, lmbda=1.0), given)
    assert task.teacher.model.get_output_embeddings().out_features > len(task.shared_S)
    assert len(task.shared_S) == len(task.decoder.tokenizer)
    batch = task.batch(0, 0)
    rows = [row for part in batch.microbatches for row in part.rows]
    for row in rows:
        assert len(row.teacher.ids) > len(row.student.ids)
    loss = sum(float(task.loss(part)) for part in batch.microbatches)
    labels = sum(row.student.labels for row in rows)
    expected = sum(float(compute_divergence(task, row, 0.5, 1.0)) for row in rows) / labels
    assert loss == pytest.approx(expected, rel=1e-4)


def test_a_teacher_with_other_tokens_is_refused(inputs: distill.Inputs, tmp_path: Path) -> None:
    other = dataclasses.replace(inputs, teacher=save_model(tmp_path / "other", "qwen2"))
    with pytest.raises(ModelError, match=r"its tokens of an answer are not those of .* same ids"):
        distill.check(dataclasses.replace(FAST, max_length=32), other, {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lmbda": 1.5}, "lmbda: 1.5 given"),
        ({"beta": -0.1}, "beta: -0.1 given"),
        ({"quantization": "nf4"}, r"distill\.method: full given; expected lora with nf4"),
        ({"checkpoints": (4, 2)}, r"distill\.checkpoints: .* expected increasing training steps"),
        ({"checkpoints": (9,)}, "checkpoints: 9 given, of 6 training steps"),
    ],
)
def test_wrong_settings_are_named(
    inputs: distill.Inputs, change: dict[str, Any], said: str
) -> None:
    distill.check(FAST, inputs, {})
    with pytest.raises(InputError, match=said):
        distill.check(validate(distill.Config, vars(FAST) | change, "distill"), inputs, {})


def test_several_turns_and_adapters_are_refused(inputs: distill.Inputs, tmp_path: Path) -> None:
    two = Sample("0", "", "", (("a", "b"), ("c", "d")), "d")
    write_shards(tmp_path / "turns", [sample_to_row(two)], SAMPLES, 10)
    write_task_name(tmp_path / "turns", "chat", verifier="exact")
    with pytest.raises(InputError, match=r"distill\.train: conversations of up to 2 turns given"):
        distill.check(
            FAST, dataclasses.replace(inputs, train=tmp_path / "turns", verifier_file=None), {}
        )
    with pytest.raises(InputError, match=r"distill\.current_best: an adapter given, with method=f"):
        distill.check(FAST, inputs, {"current_best": Result()})


def test_the_needs_count_the_teacher(tmp_path: Path) -> None:
    shapes = {name: save_shape(tmp_path / name, name) for name in ("1.5B", "7B")}
    resources = Resources(workers=1, gpus=1.0, micro_batch_size=4)
    config = distill.Config(method="full", dtype="bfloat16", max_length=1024, max_new_tokens=256)
    memory = {}
    for name, folder in shapes.items():
        given = distill.Inputs(shapes["1.5B"], folder, Path(), Path())
        found = distill.estimate_needs(config, given, resources, {})
        assert found is not None
        memory[name] = found.gpu_memory
    weights = 7_615_616_512 - 1_543_714_304  # of Qwen2.5-7B and Qwen2.5-1.5B
    assert memory["7B"] - memory["1.5B"] == pytest.approx(2 * weights / 1e9, rel=0.02)
    plain = sft.estimate_needs(
        sft.Config(method="full", dtype="bfloat16", max_length=1280),
        sft.Inputs(shapes["1.5B"], Path(), Path()),
        resources,
        {},
    )
    assert plain is not None
    assert memory["1.5B"] > plain.gpu_memory + 2 * 1.5
