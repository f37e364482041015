"""grpo without a cluster: rewards, a training step against plain torch, and settings that cannot work."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from grpo_files import FAST, make_grpo_files
from transformers import TrainerCallback

from ratchet.data.tables import read_shards, write_shards
from ratchet.data.tasks import get_task
from ratchet.data.tasks.countdown import make_sample
from ratchet.data.tasks.task import (
    CORRECT,
    SAMPLES,
    Sample,
    Verification,
    row_to_sample,
    sample_to_row,
    write_task_name,
)
from ratchet.errors import InputError
from ratchet.jobs.answers import sft
from ratchet.jobs.on_policy import grpo
from ratchet.jobs.on_policy.draws import draw_order
from ratchet.jobs.on_policy.grpo import run
from ratchet.jobs.on_policy.grpo_training import GrpoTask, compute_reward
from ratchet.jobs.training.config import check_adapter
from ratchet.jobs.training.worker import WorkerInfo
from ratchet.models.adapters import lora
from ratchet.orchestrator.job_interface import Context, Resources, Result
from ratchet.orchestrator.job_interface.settings import validate


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> grpo.Inputs:
    return make_grpo_files(tmp_path_factory.mktemp("grpo"))


def make_task(config: grpo.Config, inputs: grpo.Inputs, **resources: Any) -> GrpoTask:
    options = grpo.make_options(config)
    asked = Resources(workers=1, cpus=1.0, gpus=0.0, **resources)
    return GrpoTask(WorkerInfo(0, 1, "cpu"), options, inputs, asked)


def test_the_reward_is_what_the_verifier_accepts() -> None:
    task, sample = get_task("countdown"), make_sample(0, [1, 2, 3], 9, "(1 + 2) * 3")
    assert compute_reward(task, sample, sample.turns[0][1]) == 1
    for wrong in ("", "9", "<answer>(1 + 2) * 3 = 8</answer>", "<answer>3 * 3 = 9</answer>"):
        assert compute_reward(task, sample, wrong) == 0
    both = Sample("0", "", "", (("?", ""),), None)
    half = dataclasses.replace(
        task, verify=lambda gold, answers: [Verification(CORRECT), Verification("wrong_value")]
    )
    assert compute_reward(half, both, "an answer to two questions") == 0.5


def test_all_questions_are_drawn_before_one_is_drawn_again() -> None:
    order = draw_order(7, 17, seed=3)
    for first in (0, 7):
        assert sorted(order[first : first + 7]) == list(range(7))
    assert len(order) == 17
    assert (draw_order(7, 9, seed=3) == order[:9]).all(), "a longer run begins alike"


@pytest.mark.slow
def test_samples_are_read_as_they_are_drawn(inputs: grpo.Inputs) -> None:
    def count() -> int:
        gc.collect()
        return sum(type(one) is Sample for one in gc.get_objects())

    before, config = count(), dataclasses.replace(FAST, valid_samples=1)
    task = make_task(config, inputs)
    assert count() - before == 1, "only held-out samples are kept in memory"
    rows = read_shards(inputs.train).to_pylist()
    order = draw_order(len(rows), config.steps * config.batch_size, config.seed)
    drawn = [row_to_sample(rows[row]) for row in order]
    assert [task._find_sample(str(draw)) for draw in range(len(order))] == drawn
    tokenize = task.decoder.conversations.tokenize_sample
    assert task._tokenize(drawn) == [
        tokenize(one.system, [one.turns[0][0]], []).ids for one in drawn
    ]
    assert task.longest == max(map(len, task._tokenize(drawn)))


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_size", [None, 5])
def test_a_training_step_is_that_of_the_paper(
    inputs: grpo.Inputs, tmp_path: Path, micro_batch_size: int | None
) -> None:
    """One step of gradient descent from the same completions, in plain torch; group-relative advantages by numpy."""
    config = dataclasses.replace(
        FAST, steps=1, batch_size=3, num_completions=4, temperature=0.8, max_grad_norm=0.0
    )
    task = make_task(config, inputs, micro_batch_size=micro_batch_size)
    rate, weights = 0.1, list(task.model.parameters())
    before = [weight.detach().clone() for weight in weights]
    optimizer = torch.optim.SGD(weights, lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = task.make_trainer(tmp_path / "made", (optimizer, schedule), TrainerCallback())
    draws = [str(draw) for draw in range(3) for _ in range(4)]
    said = task._answer(draws, trainer)
    reward_QG = np.array(task._score(draws, said["completion_ids"])).reshape(3, 4)
    assert 0 < reward_QG.mean() < 1
    trainer.train()
    moved = [old - weight.detach() for old, weight in zip(before, weights, strict=True)]

    advantage_QG = (reward_QG - reward_QG.mean(1, keepdims=True)) / (
        reward_QG.std(1, ddof=1, keepdims=True) + 1e-4
    )
    with torch.no_grad():
        for weight, old in zip(weights, before, strict=True):
            weight.copy_(old)
    task.model.zero_grad()
    total = sum(map(len, said["completion_ids"]))
    for prompt, answer, advantage in zip(
        said["prompt_ids"], said["completion_ids"], advantage_QG.ravel(), strict=True
    ):
        logits_LV = task.model(input_ids=torch.tensor([[*prompt, *answer]])).logits[
            0, len(prompt) - 1 : -1
        ]
        logprob_LV = torch.log_softmax(logits_LV / config.temperature, -1)
        (-advantage * logprob_LV[range(len(answer)), answer].sum() / total).backward()
    for weight, change in zip(weights, moved, strict=True):
        assert weight.grad is not None
        assert torch.allclose(change, rate * weight.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("quantization", ["none", "nf4"])
def test_adapters_are_float32(inputs: grpo.Inputs, tmp_path: Path, quantization: Any) -> None:
    change = {"method": "lora", "dtype": "bfloat16", "quantization": quantization, "kl_weight": 0.1}
    task = make_task(dataclasses.replace(FAST, steps=2, **change), inputs)
    trained = [weight for weight in task.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = task.make_trainer(tmp_path / "made", (optimizer, schedule), TrainerCallback())
    trainer.train()
    adapters = {name: weight for name, weight in task.model.named_parameters() if "lora_" in name}
    assert {weight.dtype for weight in adapters.values()} == {torch.float32}
    assert all(weight.requires_grad == (".ref." not in name) for name, weight in adapters.items())
    assert [entry["kl"] > 0 for entry in trainer.state.log_history[:2]] == [False, True]
    task.save(tmp_path / "adapter")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        lora.CONFIG,
        lora.WEIGHTS,
        "task.json",
    }


@pytest.mark.slow
def test_adapter_is_continued_without_dropout(inputs: grpo.Inputs, tmp_path: Path) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(inputs.base)
    shape: dict[str, Any] = {"lora_r": 4, "lora_alpha": 8.0, "target_modules": "all-linear"}
    lora.save(
        lora.attach(base, **shape, lora_dropout=0.1, seed=0, task="CAUSAL_LM"), tmp_path / "adapter"
    )
    given = dataclasses.replace(inputs, current_best=tmp_path / "adapter")
    task = make_task(dataclasses.replace(FAST, steps=1, method="lora"), given)
    optimizer = torch.optim.AdamW(
        [weight for weight in task.model.parameters() if weight.requires_grad]
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    task.make_trainer(tmp_path / "made", (optimizer, schedule), TrainerCallback()).train()
    task.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / lora.CONFIG).read_text())["lora_dropout"] == 0


def test_continued_adapter_keeps_its_settings(
    inputs: grpo.Inputs, tmp_path: Path, context: Callable[..., Context]
) -> None:
    base = transformers.AutoModelForCausalLM.from_pretrained(inputs.base)
    shape: dict[str, Any] = {"lora_r": 4, "lora_alpha": 8.0, "target_modules": "q_proj,v_proj"}
    lora.save(lora.attach(base, **shape, lora_dropout=0.0, seed=0, task="CAUSAL_LM"), tmp_path)
    given = dataclasses.replace(inputs, current_best=tmp_path)
    plain = dataclasses.replace(FAST, method="lora")
    own = dataclasses.replace(plain, lora_r=4, lora_alpha=8.0, target_modules="v_proj, q_proj")
    grpo.check(own, given, {})
    assert check_adapter("grpo", grpo.make_options(own), tmp_path) == ""
    grpo.check(plain, given, {})
    said = check_adapter("grpo", grpo.make_options(plain), tmp_path)
    assert said == "continued the adapter with its own lora_r=4, lora_alpha=8.0"
    sft_inputs = sft.Inputs(
        inputs.base,
        inputs.train,
        inputs.valid,
        current_best=tmp_path,
        verifier_file=inputs.verifier_file,
    )
    for change, named in (
        ({"lora_r": 8}, r"lora_r: 8 given, to continue .* expected its own, 4"),
        ({"lora_alpha": 9.0}, r"lora_alpha: 9\.0 given, to continue .* expected its own, 8\.0"),
        (
            {"target_modules": "q_proj"},
            r"target_modules: q_proj given, to continue .*\['q_proj', 'v_proj'\]",
        ),
        ({"target_modules": "q_proj,v_proj,k_proj"}, r"target_modules: q_proj,v_proj,k_proj given"),
    ):
        with pytest.raises(InputError, match=r"grpo\." + named):
            grpo.check(dataclasses.replace(plain, **change), given, {})
        with pytest.raises(
            InputError, match=r"grpo\." + named
        ):  # the adapter of a step exists only now
            run(context(), dataclasses.replace(plain, **change), given)
        sft.check(sft.Config(**change), sft_inputs, {})  # for a new adapter
        with pytest.raises(InputError, match=r"sft\." + named):
            sft.check(sft.Config(**change, start_from="current_best"), sft_inputs, {})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_completions": 1}, "num_completions: 1 given; expected .*2"),
        ({"temperature": 0.0}, "temperature: 0.0 given"),
        ({"quantization": "nf4"}, r"grpo\.method: full given; expected lora with nf4"),
        ({"checkpoints": (4, 2)}, r"grpo\.checkpoints: .* expected increasing training steps"),
        ({"checkpoints": (9,)}, "checkpoints: 9 given, of 6 training steps"),
        ({"warmup_steps": 6}, "warmup_steps: 6 given, of 6 steps"),
        ({"method": "lora", "target_modules": "nothing"}, r"grpo\.target_modules: 'nothing' given"),
    ],
)
def test_wrong_settings_are_named(inputs: grpo.Inputs, change: dict[str, Any], said: str) -> None:
    grpo.check(FAST, inputs, {})
    with pytest.raises(InputError, match=said):
        grpo.check(validate(grpo.Config, vars(FAST) | change, "grpo"), inputs, {})


def test_samples_without_one_verified_answer_are_refused(
    inputs: grpo.Inputs, tmp_path: Path
) -> None:
    two = Sample("0", "", "", (("a", "b"), ("c", "d")), "d")
    write_shards(tmp_path / "turns", [sample_to_row(two)], SAMPLES, 10)
    write_task_name(tmp_path / "turns", "chat", verifier="exact")
    with pytest.raises(
        InputError, match=r"grpo\.train: conversations of up to 2 turns given .* expected one turn"
    ):
        grpo.check(
            FAST, dataclasses.replace(inputs, train=tmp_path / "turns", verifier_file=None), {}
        )
    write_task_name(tmp_path / "turns", "chat", verifier="none")
    with pytest.raises(InputError, match=r"grpo\.train: samples without a verifier given"):
        grpo.check(
            FAST, dataclasses.replace(inputs, train=tmp_path / "turns", verifier_file=None), {}
        )
    with pytest.raises(
        InputError, match=r"grpo\.current_best: an adapter given, with method=full; expected none"
    ):
        grpo.check(FAST, inputs, {"current_best": Result()})
    with pytest.raises(InputError, match=r"all 7 prompts of .* are longer"):
        make_task(dataclasses.replace(FAST, max_prompt_length=3), inputs)
