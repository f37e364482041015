"""Mistakes in the search space and the metric of a sweep. They are found before Ray starts."""

from __future__ import annotations

from pathlib import Path

import mistakes
import pytest
from mistakes import MODEL, Mistake

COMMAND = (
    "sweep quickstart --set base=base --set iterations=2 --trials 2 --space space.yaml --metric"
)


def space(name: str, line: str, answer: str, metric: str = "map@25") -> Mistake:
    return Mistake(name, f"{COMMAND} {metric}", answer, {**MODEL, "space.yaml": line + "\n"})


GIVEN = r"space\.yaml:1: "
RATE = "finetune_embedder.learning_rate: "
SPACES = [
    space(
        "fractions_for_int",
        "finetune_embedder.epochs: uniform(1, 3)",
        GIVEN + r"uniform\(1, 3\) given, which draws fractions",
    ),
    space(
        "log_fractions_for_int",
        "finetune_embedder.lora_r: loguniform(8, 64)",
        GIVEN + r"loguniform\(8, 64\) given, which draws fractions",
    ),
    space(
        "large_fractions_for_int",
        "finetune_embedder.epochs: uniform(100, 5000)",
        GIVEN + r"uniform\(100, 5000\) given, which draws fractions",
    ),
    space("value_twice", "finetune_embedder.epochs: grid(1, 1)", GIVEN + r"grid\(1, 1\) given"),
    space(
        "fractions_for_iterations",
        "iterations: uniform(1, 3)",
        GIVEN + r"uniform\(1, 3\) given, which draws .*",
    ),
    space("no_comma", RATE + "loguniform(1e-4 5e-3)", GIVEN + r"loguniform\(1e-4 5e-3\) given"),
    space(
        "no_bracket",
        RATE + "uniform(1e-4, 5e-3",
        GIVEN + r"uniform\(1e-4, 5e-3 given, which cannot be read",
    ),
    space(
        "choice_no_comma",
        "finetune_embedder.epochs: choice(1 2)",
        GIVEN + r"--set finetune_embedder\.epochs=1 2: '1 2' given",
    ),
    space(
        "resource",
        "embed.workers: choice(1, 2)",
        GIVEN + r"embed\.workers is a resource: .*; give it with --set embed\.w.*",
    ),
    space(
        "resource_memory", "embed.memory: uniform(1, 2)", GIVEN + r"embed\.memory is a resource: .*"
    ),
    space(
        "resource_batch",
        "embed.batch_tokens: randint(1, 9)",
        GIVEN + r"embed\.batch_tokens is a resource: .*",
    ),
    space("unknown_kind", RATE + "normal(1, 2)", GIVEN + r"normal\(1, 2\) given"),
    space("reversed", RATE + "uniform(2, 1)", GIVEN + r"uniform\(2, 1\) given"),
    space("log_of_zero", RATE + "loguniform(0, 1)", GIVEN + r"loguniform\(0, 1\) given"),
    space("one_end", RATE + "uniform(1)", GIVEN + r"uniform\(1\) given"),
    space(
        "randint_fractions",
        "finetune_embedder.epochs: randint(1.5, 3)",
        GIVEN + r"randint\(1\.5, 3\) given",
    ),
    space("empty_choice", RATE + "choice()", GIVEN + r"choice\(\) given"),
    space(
        "out_of_bounds",
        RATE + "uniform(-1, 1)",
        GIVEN + r"--set finetune_embedder\.learning_rate=-1: '-1' given",
    ),
    space(
        "choice_of_text",
        "finetune_embedder.epochs: choice(1, two)",
        GIVEN + r"--set .*epochs=two: 'two' given",
    ),
    space(
        "misspelt_step",
        "finetune_embeder.epochs: choice(1, 2)",
        GIVEN + r"--set .*: no step matches .*; did you mean .*",
    ),
    space(
        "misspelt_setting",
        "finetune_embedder.epoches: choice(1, 2)",
        GIVEN + r"--set .*; did you mean 'epochs'\?",
    ),
    space(
        "misspelt_parameter",
        "iteration: choice(1, 2)",
        GIVEN + r"--set .*; did you mean 'iterations'\?",
    ),
    space(
        "no_distribution",
        "finetune_embedder.epochs: 2",
        r"space space\.yaml: no distribution given",
    ),
    space(
        "twice",
        "iterations: choice(1, 2)\niterations: choice(1, 2)",
        r"space\.yaml:2: iterations is also given at space\.yaml:1",
    ),
    space("a_list", "iterations: [1, 2]", GIVEN + r"a list or a nested block given"),
]
FILES = [
    Mistake("no_such_space", f"{COMMAND} map@25", r"space\.yaml: no such file", MODEL),
    Mistake(
        "a_folder",
        f"{COMMAND} map@25",
        r"space\.yaml: a folder given",
        {**MODEL, "space.yaml/": ""},
    ),
    space("empty", "", r"space\.yaml: only blank lines"),
    space("no_yaml", "a: [1", r"space\.yaml:\d: .*; expected lines"),
    space("no_mapping", "- a", r"space\.yaml: no mapping given"),
]
EPOCHS = "finetune_embedder.epochs: choice(1, 2)"
METRICS = [
    space(
        "metric_unknown",
        EPOCHS,
        r"--metric nosuch: no step that depends on the space reports it",
        "nosuch",
    ),
    space(
        "metric_close",
        EPOCHS,
        r"--metric map@52: .*; did you mean 'MAP@25'\?.*|--metric map@52: .* 'map@25'\?.*",
        "map@52",
    ),
    space(
        "metric_of_no_step", EPOCHS, r"--metric nosuch\.map@25: no step 'nosuch'", "nosuch.map@25"
    ),
    space(
        "metric_of_step",
        EPOCHS,
        r"--metric iter1/evaluate\.map@7: step iter1/evaluate reports no 'map@7'",
        "iter1/evaluate.map@7",
    ),
    space(
        "metric_of_training",
        EPOCHS,
        r"--metric iter1/finetune_embedder\.acuracy: step iter1/finetune_embedder reports no .*",
        "iter1/finetune_embedder.acuracy",
    ),
    space(
        "metric_before_space",
        EPOCHS,
        r"--metric bm25/evaluate\.map@25: the space changes nothing that .*",
        "bm25/evaluate.map@25",
    ),
]


@mistakes.parametrize(SPACES, FILES, METRICS)
def test_a_mistake_leaves_no_sweep(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    mistakes.check(mistake, tmp_path, monkeypatch, capsys)
    assert not list(tmp_path.glob("store/sweeps/*"))
