"""Mistakes in the space and the metric of a sweep. No sweep is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from mistakes import Mistake, check, parametrize

ORDER = "sweep quickstart --space space.yaml --metric {}"
GOOD = "finetune_embedder.epochs: choice(1, 2)\n"


def space(name: str, text: str, answer: str) -> Mistake:
    return Mistake(name, ORDER.format("map@25"), answer, {"space.yaml": text})


def metric(given: str, answer: str) -> Mistake:
    return Mistake(
        f"metric {given}", ORDER.format(given), rf"--metric {given}: {answer}", {"space.yaml": GOOD}
    )


SPACES = [
    Mistake(
        "no such space",
        ORDER.format("map@25"),
        r"space\.yaml: no such file; expected one; check the path",
    ),
    Mistake(
        "a folder",
        ORDER.format("map@25"),
        r"space\.yaml: a folder given; expected a file; .*",
        {"space.yaml/": ""},
    ),
    space("empty", "", r"space\.yaml: the file is empty; expected text; .*"),
    space(
        "plain values only",
        "seed: 3\n",
        r"space space\.yaml: no distribution given; expected a line such as .*",
    ),
    space("a list", "- a\n", r"space\.yaml: no mapping given; expected lines `name: value`"),
    space(
        "nested",
        "a:\n  - b\n",
        r"space\.yaml:1: a list or a nested block given; expected `name: value` .*",
    ),
    space(
        "twice",
        GOOD + GOOD,
        r"space\.yaml:2: finetune_embedder\.epochs is also given at space\.yaml:1; .*",
    ),
    space("no yaml", "a: [1", r"space\.yaml:1: .*; expected lines `name: value`; .*"),
    space(
        "distribution",
        "seed: lognormal(1, 2)\n",
        r"space\.yaml:1: lognormal\(1, 2\) given; expected one of .*",
    ),
    space(
        "empty grid",
        "seed: grid()\n",
        r"space\.yaml:1: grid\(\) given; expected at least one value .*",
    ),
    space(
        "low and high",
        "seed: uniform(2, 1)\n",
        r"space\.yaml:1: uniform\(2, 1\) given; expected uniform\(low, high\).*",
    ),
    space(
        "parameter", "iteratons: choice(1, 2)\n", r"space\.yaml:1: .*; did you mean 'iterations'\?"
    ),
    space(
        "job",
        "finetune_embeder.epochs: choice(1, 2)\n",
        r"space\.yaml:1: .*; did you mean 'finetune_embedder'\?",
    ),
    space(
        "setting",
        "finetune_embedder.epoches: choice(1, 2)\n",
        r"space\.yaml:1: .*; did you mean 'epochs'\?",
    ),
    space(
        "value",
        "finetune_embedder.epochs: choice(one, two)\n",
        r"space\.yaml:1: .*'one' given; expected a valid integer.*",
    ),
]
METRICS = [
    metric("mpa@25", r"no step .*; did you mean 'map@25'\?.*"),
    metric("Map@25", r"no step .*; did you mean '(map|MAP)@25'\?.*"),
    metric("iter9/evaluate.map@25", r"no step 'iter9/evaluate'; expected one of .*"),
    metric(
        "finetune_embeder.map@25",
        r"no step 'finetune_embeder'; .*; did you mean 'finetune_embedder'\?.*",
    ),
]


@pytest.mark.slow
@parametrize(SPACES, METRICS)
def test_a_mistake_is_answered_in_one_line_and_leaves_no_sweep(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(mistake, tmp_path, monkeypatch, capsys)
    assert not list(tmp_path.glob("store/sweeps/*"))
