"""The published runs: each file is planned with stand-ins, and the steps have the settings that are published.

`logbooks/RUN.yaml` has the values that a publication states: setting of a step (or parameter of the recipe), value, and
the line that states it, in `file` or the logbook. Line 0: no single line does, or it is the default of what a script
uses.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_shapes import save_shape
from published_runs import FOLDER, RUNS, SHAPES, recipe_of, replace_models, write_data

from ratchet.errors import RecipeError
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.recipe import (
    Settings,
    build,
    find,
    find_settings,
    match_steps,
    read_settings,
)

LOGBOOKS = Path(__file__).with_name("logbooks")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = save_shape(tmp_path_factory.mktemp("0.5B"), "0.5B")
    return dict.fromkeys(SHAPES.values(), folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return write_data(tmp_path_factory.mktemp("data"))


def read_logbook(run: str) -> list[dict[str, Any]]:
    file = LOGBOOKS / f"{run}.yaml"
    table = yaml.safe_load(file.read_text())
    address = r"https://(github\.com|huggingface\.co)/\S+"
    assert re.fullmatch(address, table["logbook"])
    values: list[dict[str, Any]] = table["values"]
    for value in values:
        assert value.keys() - {"file"} == {"setting", "value", "line"}, value
        assert re.fullmatch(address, value.get("file", table["logbook"]))
    return values


def test_every_file_is_compared() -> None:
    assert {path.stem for path in LOGBOOKS.glob("*.yaml")} == set(RUNS)
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
    steps, _, parameters = build(find(recipe_of(run)), Settings.read(lines))
    by_name = {step.name: step for step in steps}
    named = dict(line.split("=", 1) for line in read_settings(find_settings(f"published/{run}")))
    stand_in = str(next(iter(models.values())))
    wrong = []
    for value in read_logbook(run):
        name, _, setting = value["setting"].rpartition(".")
        if name == "recipe":
            found = parameters[setting]
            if stand_in == str(found):
                found = named[setting]
            elif isinstance(found, tuple) and stand_in in found:
                found = tuple(named[setting].split(","))
        else:
            step = by_name[name]
            owner = step.config if hasattr(step.config, setting) else step.resources
            found = getattr(owner, setting)
        if isinstance(found, tuple):
            found = list(found)
        if found != value["value"]:
            wrong.append((value["setting"], found, value["value"], value["line"]))
    assert not wrong
    stated = {value["setting"] for value in read_logbook(run)}
    for line in read_settings(find_settings(f"published/{run}")):
        pattern, _, setting = line.partition("=")[0].rpartition(".")
        names = {f"recipe.{setting}"}
        if pattern:
            names = {f"{step.name}.{setting}" for step in match_steps(steps, pattern)}
        assert names & stated, f"{line}: in no line of the table"


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
