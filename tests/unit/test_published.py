"""The published runs: each file is planned with stand-ins, and the steps have the settings that are published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_shapes import save_shape
from published_runs import FOLDER, RUNS, SHAPES, recipe_of, replace_models, write_data

from ratchet.errors import RecipeError
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.recipe import Settings, build, find, find_settings, read_settings

ICL = {
    "learning_rate": 1e-4,
    "batch_size": 16,
    "num_negatives": 7,
    "temperature": 0.02,
    "lora_r": 32,
}
ICL |= {"lora_alpha": 64.0, "lora_dropout": 0.1, "warmup_ratio": 0.1, "max_length": 1024}
RERANKER = {
    "learning_rate": 2e-4,
    "batch_size": 32,
    "num_negatives": 15,
    "lora_r": 32,
    "lora_alpha": 64.0,
}
RERANKER |= {"lora_dropout": 0.05, "warmup_ratio": 0.05, "epochs": 4, "start_from": "base"}
MINED = {"window": (2, 200), "num_negatives": 15, "candidates": "corpus"}
SQUAD = {
    "learning_rate": 2e-4,
    "batch_size": 8,
    "epochs": 1,
    "lora_r": 16,
    "lora_alpha": 32.0,
    "lora_dropout": 0.05,
}
SQUAD |= {
    "warmup_ratio": 0.03,
    "target_modules": "q_proj,k_proj,v_proj,o_proj",
    "max_new_tokens": 96,
}
TAUGHT = {"distillation": "kl_div", "teacher_temperature": 1.0}
PUBLISHED: dict[str, dict[str, dict[str, Any]]] = {
    "theorems": {
        "finetune_embedder_pairs": {
            "batch_size": 16_384, "projection": 2048, "lora_r": 8, "lora_alpha": 16.0, "lora_dropout": 0.05,
            "target_modules": "q_proj,k_proj,v_proj,o_proj", "quantization": "nf4", "epochs": 10, "learning_rate": 1e-3,
            "warmup_steps": 200, "weight_decay": 0.01, "temperature": 0.07, "max_length": 256, "chunk": 256,
            "gradient_checkpointing": True, "lr_scheduler_type": "cosine", "seed": 42,
        },
    },
    "misconceptions-cv": {
        "iter0/mine": MINED,
        "iter0/mine_hard": MINED | {"window": (2, 100)},
        "iter0/finetune_embedder": ICL | {"epochs": 2, "distillation": "none", "start_from": "base"},
        "iter1/finetune_embedder": ICL | TAUGHT | {"epochs": 3, "start_from": "base"},
        "iter2/finetune_embedder": ICL | TAUGHT | {"epochs": 4, "start_from": "base"},
        "iter0/finetune_reranker": RERANKER | {"label_smoothing": 0.0, "distillation": "none"},
        "iter0/choose_reranker": {"checkpoint": 2},
        "iter1/finetune_reranker": RERANKER | TAUGHT | {"label_smoothing": 0.2},
        "iter1/choose_reranker": {"checkpoint": 3},
    },
    "misconceptions-submission": {
        "iter0/finetune_embedder": ICL | {"epochs": 3, "start_from": "base"},
        "iter1/finetune_embedder": ICL | TAUGHT | {"epochs": 4},
        "iter0/finetune_reranker": RERANKER | {"label_smoothing": 0.0},
        "iter1/finetune_reranker": RERANKER | TAUGHT | {"label_smoothing": 0.2},
    },
    "misconceptions-icl": {"iter0/mine": MINED, "iter0/finetune_embedder": ICL | {"epochs": 5, "keep": "all"}},
    "squad": {
        f"{strategy}-{pairs}/{job}": settings
        for strategy in ("batch", "sequential")
        for pairs in (200, 1000)
        for job, settings in (("sft", SQUAD), ("prepare", {"max_train": pairs, "max_test": 100}))
    },
    "gsm8k": {
        "sft": {"method": "lora", "epochs": 3, "learning_rate": 2e-4},
        "prepare": {"task": "gsm8k"},
        "gsm8k-boxed/prepare": {"task": "gsm8k-boxed"},
        "gsm8k-boxed/trained/generate": {"allow_other_task": True},
        "trained/generate": {"allow_other_task": False},
    },
    "countdown": {
        "tasks": {"tasks": 100_000},
        "prepare": {"max_test": 10_000, "test_fraction": 0.1},
        "sft": {"method": "full", "ce_weight": 0.5, "checkpoints": (500, 1000, 1500, 2000, 3000)},
        "baseline-0/generate": {"num_completions": 4},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = save_shape(tmp_path_factory.mktemp("0.5B"), "0.5B")
    return dict.fromkeys(SHAPES.values(), folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return write_data(tmp_path_factory.mktemp("data"))


def test_every_file_is_compared() -> None:
    assert set(PUBLISHED) == set(RUNS)
    assert find_settings("published/squad") == FOLDER / "squad.yaml"
    assert find_settings("published/other") == Path("published/other")
    with pytest.raises(RecipeError, match=r"published/other: no such file"):
        read_settings(find_settings("published/other"))


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_published_run_has_published_settings(
    run: str, models: dict[str, Path], data: dict[str, list[str]], tmp_path: Path
) -> None:
    given = [*data[recipe_of(run)], *replace_models(run, models)]
    options = [word for line in given for word in ("--set", line)]
    words = [
        "plan",
        recipe_of(run),
        "--settings",
        f"published/{run}",
        *options,
        "--store",
        str(tmp_path / "store"),
    ]
    assert main(words) == 0
    lines = [*read_settings(find_settings(f"published/{run}")), *given]
    steps, summary, _ = build(find(recipe_of(run)), Settings.read(lines))
    configs = {step.name: step.config for step in steps}
    for name, settings in PUBLISHED[run].items():
        assert {key: getattr(configs[name], key) for key in settings} == settings, name
    if run == "squad":
        assert [row.label for row in summary.rows] == [
            f"{strategy}, {label}"
            for strategy in ("batch", "sequential")
            for label in ("untrained", "trained on 200", "trained on 1000")
        ]
    if run == "gsm8k":
        assert [row.label for row in summary.rows] == [
            "untrained", "trained", "untrained, as gsm8k-boxed", "trained, as gsm8k-boxed"
        ]  # fmt: skip


def test_a_block_of_settings_is_one_for_each_line(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        'base: x\nmine: {window: "2,100",\n  num_negatives: 7}\n"iter0/mine":\n  seed: 3\n'
    )
    assert read_settings(file) == [
        "base=x",
        "mine.window=2,100",
        "mine.num_negatives=7",
        "iter0/mine.seed=3",
    ]
    for text in ("mine: {window: [2, 100]}", "mine: {a: {b: 1}}", "mine: [1]", "? {a: 1}\n: 2"):
        file.write_text(text)
        with pytest.raises(RecipeError, match=r"settings.yaml:1: a list or a nested block given"):
            read_settings(file)
