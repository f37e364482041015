"""Needs in plans (memory, disk), and steps that do not fit: refused with settings that make them fit."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from accelerate import infer_auto_device_map
from accelerate.utils import compute_module_sizes, get_balanced_memory
from model_shapes import PROJECTIONS, save_shape
from published_runs import RUNS, SHAPES, recipe_of, replace_models, write_data

from ratchet.errors import InputError
from ratchet.jobs import needs
from ratchet.jobs.answers import sft
from ratchet.jobs.inference import InferenceConfig
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.execution.needs import parse_gpu
from ratchet.orchestrator.job_interface import Needs, Resources, Result


@pytest.mark.parametrize(
    "text", ["H100", "H100:", ":80", "H100:80:0", "H100:80:two", "H100:-1", "H100:80:8:9"]
)
def test_a_gpu_has_a_name_and_a_memory(text: str) -> None:
    with pytest.raises(InputError, match=r"expected NAME:GB or NAME:GB:COUNT, such as H100:80:8"):
        parse_gpu(text)
    machine = parse_gpu("H100:80:8")
    assert (machine.gpus, machine.gpu_memory, machine.accelerators) == (
        8.0,
        80.0,
        frozenset({"H100"}),
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        shape: save_shape(tmp_path_factory.mktemp(shape), shape)
        for shape in set(SHAPES.values()) | {"0.5B", "32B"}
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The data of each recipe, as settings."""
    return write_data(tmp_path_factory.mktemp("data"))


def plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, recipe: str, *words: str
) -> tuple[int, str, str]:
    status = main(["plan", recipe, "--store", str(tmp_path / "store"), *words])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def to_options(lines: list[str]) -> list[str]:
    return [word for line in lines for word in ("--set", line)]


QUICK = ("theorems", "squad")
"""The plans of the other published runs take over ten seconds each."""


@pytest.mark.parametrize(
    "run", [pytest.param(one, marks=() if one in QUICK else pytest.mark.soak) for one in RUNS]
)
def test_published_runs_fit_on_eight_gpus_of_80_gb(
    run: str,
    models: dict[str, Path],
    data: dict[str, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = recipe_of(run)
    given = [*data[recipe], *replace_models(run, models)]
    words = ["--settings", f"published/{run}", *to_options(given), "--gpu", "H100:80:8"]
    status, shown, said = plan(capsys, tmp_path, recipe, *words)
    assert status == 0, said
    memory = [float(text) for text in re.findall(r"GPU ([\d.]+) GB", shown)]
    assert len(memory) >= 3
    assert max(memory) <= 80


def test_zero_3_shards_what_full_finetuning_keeps(models: dict[str, Path]) -> None:
    def count(stage: int, workers: int) -> Needs:
        config = sft.Config(
            method="full", zero_stage=stage, dtype="bfloat16", gradient_checkpointing=True
        )
        resources = Resources(workers, gpus=1.0, micro_batch_size=1)
        found = sft.estimate_needs(config, sft.Inputs(models["7B"], Path(), Path()), resources, {})
        assert found is not None
        return found

    weights = 7_615_616_512  # of Qwen2.5-7B
    halved = count(3, 8).gpu_memory - count(3, 16).gpu_memory
    # Of each weight 2 bytes in bfloat16, 12 of the optimizer, 8 of gradients and 6 that are needed for a while.
    assert halved == pytest.approx(28 * weights / 16 / 1e9, abs=0.01)
    assert count(3, 8).gpu_memory < 80 < count(2, 8).gpu_memory
    assert count(3, 8).memory > 2 * weights / 1e9  # the first worker saves the model


@pytest.mark.parametrize(
    ("model", "gpu", "line", "answer"),
    [
        pytest.param(
            "32B",
            "H100:80",
            "",
            r"step zero_shot/embed_\w+: needs about 6\d\.\d GB|step iter0/finetune_embedder: needs about .*",
            marks=pytest.mark.soak,
        ),
        (
            "7B",
            "L4:24",
            "finetune_embedder.batch_size=256",
            r"add --set finetune_embedder\.micro_batch_size=1",
        ),
        pytest.param(
            "14B",
            "A100:40",
            "",
            r"add --set finetune_embedder\.micro_batch_size=1\n",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            "32B",
            "T4:16",
            "",
            r"use a smaller model, or larger machines|add --set embed",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_what_cannot_fit_is_refused_with_what_makes_it_fit(
    model: str,
    gpu: str,
    line: str,
    answer: str,
    models: dict[str, Path],
    data: dict[str, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [*data["misconceptions"], f"base={models[model]}", *([line] if line else [])]
    status, _, said = plan(capsys, tmp_path, "retriever", *to_options(given), "--gpu", gpu)
    assert status == 2
    assert re.search(answer, said), said
    assert "expected at most" in said
    # With what is advised the same step is no longer refused.
    if advised := re.search(r"step (\S+): .*; add ((?:--set \S+ ?)+)", said):
        status, _, after = plan(
            capsys, tmp_path, "retriever", *to_options(given), *advised[2].split(), "--gpu", gpu
        )
        assert status == 0 or f"step {advised[1]}:" not in after


def test_small_model_is_not_counted(
    data: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, shown, _ = plan(capsys, tmp_path, "retriever", *to_options(data["misconceptions"]))
    assert status == 0
    assert "GPU" not in shown
    assert "memory" not in shown


@pytest.mark.parametrize("job", ["embed", "rerank"])
def test_gpus_of_an_inference_worker(
    job: str, data: dict[str, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*data["misconceptions"], "reranker=embedder"]
    words = [*to_options(given), "--gpu", "H100:80:8", "--set"]
    status, _, said = plan(capsys, tmp_path, "retriever", *words, f"{job}.gpus=1.5")
    assert status == 2
    assert "gpus: 1.5 per worker given; expected at most 1, or a whole number" in said
    status, _, said = plan(capsys, tmp_path, "retriever", *words, f"{job}.gpus=2")
    assert status == 0, said


@pytest.mark.parametrize("count", [1, 2])
def test_large_model_is_spread_over_gpus(
    count: int,
    models: dict[str, Path],
    data: dict[str, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        *to_options([*data["misconceptions"], f"base={models['32B']}"]),
        "--gpu",
        f"L40S:48:{count}",
    ]
    status, _, said = plan(capsys, tmp_path, "retriever", *words)
    assert status == 2
    (fix,) = re.findall(r"step zero_shot/embed_\w+: .*; add --set embed\.(\S+)\n", said)
    assert fix == ("quantization=nf4" if count == 1 else "gpus=2")


@pytest.mark.parametrize("gpus", [2, 3, 8])
@pytest.mark.parametrize("model", ["7B", "32B"])
def test_each_gpu_is_counted_for_what_accelerate_puts_there(
    model: str, gpus: int, models: dict[str, Path]
) -> None:
    with torch.device("meta"):
        plain = transformers.AutoModel.from_config(
            transformers.AutoConfig.from_pretrained(models[model]), dtype=torch.bfloat16
        )
    whole = {"no_split_module_classes": list(plain._no_split_modules)}
    room = get_balanced_memory(plain, dict.fromkeys(range(gpus), 10**12), **whole)
    sizes = compute_module_sizes(plain)
    held = Counter[int]()
    for name, place in infer_auto_device_map(plain, room, **whole).items():
        held[place] += sizes[name]
    assert len(held) > gpus / 2

    def count(number: float) -> float:
        resources = Resources(workers=1, cpus=1.0, gpus=number)
        config, inputs = InferenceConfig(dtype="bfloat16"), SimpleNamespace(adapter=None)
        step = needs.ModelStep(config, inputs, resources, {}, models[model])
        found = step.estimate_inference("backbone", length=512)
        assert found is not None
        return found.gpu_memory * 1e9

    rest = count(1.0) - sizes[""]
    assert max(held.values()) <= count(float(gpus)) - rest + 1e6 <= max(held.values()) * 1.3


def test_experts_with_an_attention_adapter(
    data: dict[str, list[str]],
    models: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "experts"
    shutil.copytree(models["7B"], folder)
    size = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = transformers.MixtralConfig(
        **size, vocab_size=300, num_key_value_heads=2, num_local_experts=4
    )
    config.architectures = ["MixtralForCausalLM"]
    config.save_pretrained(folder)
    given = [
        *data["misconceptions"],
        f"base={folder}",
        "finetune_embedder.target_modules=q_proj,k_proj",
    ]
    status, _, said = plan(capsys, tmp_path, "retriever", *to_options(given), "--gpu", "H100:80")
    assert status == 0, said


@pytest.mark.soak
def test_the_longest_text_bounds_the_length(
    data: dict[str, list[str]],
    models: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not the 8,192 tokens that the model can read: short texts would be refused."""
    folder = tmp_path / "large"
    shutil.copytree(models["0.5B"], folder)
    with (folder / "model.safetensors").open(
        "r+b"
    ) as file:  # large on disk, so that it is counted on CPUs
        size = 600_000_000
        header = {
            "model.layers.0.norm.weight": {
                "dtype": "BF16",
                "shape": [size // 2],
                "data_offsets": [0, size],
            }
        }
        for part in PROJECTIONS:
            header[f"model.layers.0.{part}.weight"] = {
                "dtype": "BF16",
                "shape": [0],
                "data_offsets": [size, size],
            }
        text = json.dumps(header).encode()
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    # The default is float32 on CPUs that do not multiply bfloat16, which would double the numbers there.
    half = [
        f"{job}.dtype=bfloat16"
        for job in ("embed", "rerank", "finetune_embedder", "finetune_reranker")
    ]
    given = [*data["misconceptions"], f"base={folder}", "reranker=embedder", *half]
    status, shown, said = plan(capsys, tmp_path, "retriever", *to_options(given))
    memory = re.findall(r"memory ([\d.]+) GB", shown)
    assert memory, said
    assert max(map(float, memory)) < 20
    words = f"data={tmp_path / 'long.jsonl'}"
    lines = (
        Path(data["misconceptions"][0].removeprefix("data="))
        .read_text()
        .replace('"q1"', f'"{"x" * 20_000}"')
    )
    (tmp_path / "long.jsonl").write_text(lines)
    status, _, said = plan(capsys, tmp_path, "retriever", *to_options([words, *given[1:]]))
    assert status == 2
    assert "step iter0/finetune_embedder: needs about" in said


@pytest.mark.parametrize(("method", "written"), [("full", 16), ("lora", 20)])
def test_a_training_writes_up_to_three_checkpoints(
    method: str, written: int, models: dict[str, Path]
) -> None:
    """DeepSpeed's files take 14 bytes per trained weight in bfloat16 and 16 in float32, the best model 2 or 4."""
    config = sft.Config(method=method, dtype="bfloat16")  # type: ignore[arg-type]
    resources = Resources(1, cpus=1.0, gpus=1.0)
    step = needs.ModelStep(config, None, resources, {}, models["0.5B"])
    foreseen = step.estimate_training("causal", length=64, tokens=64)
    trained = {"full": 494_032_768, "lora": 8_798_208}[method]
    assert foreseen is not None
    assert foreseen.disk == pytest.approx(3 * written * trained / 1e9, rel=0.01)


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(
    ("change", "kept"),
    [({"keep": "all"}, 3), ({"checkpoints": (5, 30)}, 2), ({"eval_steps": 4}, 0)],
)
def test_the_models_of_evaluations_are_counted(
    method: str, change: dict[str, Any], kept: int, models: dict[str, Path]
) -> None:
    """They are in the work folder, and copied into the result."""
    plain = sft.Config(method=method, dtype="bfloat16", epochs=3, batch_size=8)  # type: ignore[arg-type]
    inputs = sft.Inputs(models["0.5B"], models["0.5B"], models["0.5B"])
    given = inputs, Resources(1, cpus=1.0, gpus=1.0), {"train": Result({"train": 77})}
    one, other = (
        sft.estimate_needs(config, *given) for config in (plain, replace(plain, **change))
    )
    assert one is not None
    assert other is not None
    size = {"full": 494_032_768 * 2, "lora": 8_798_208 * 4}[method]
    assert other.disk - one.disk == pytest.approx(2 * kept * size / 1e9, rel=0.01, abs=0.002)


def test_a_training_worker_has_one_gpu_when_planned(models: dict[str, Path]) -> None:
    with pytest.raises(
        InputError, match=r"gpus: 2 per worker given; expected 0 or 1, since a training worker"
    ):
        sft.estimate_needs(
            sft.Config(),
            sft.Inputs(models["0.5B"], Path(), Path()),
            Resources(1, cpus=1.0, gpus=2.0),
            {},
        )
