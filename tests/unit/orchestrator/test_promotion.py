"""Names of models: what they point to, and where recipes take them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from run_models import EMBEDDER, make_run
from store_contents import made_of

from ratchet.errors import InputError
from ratchet.orchestrator import gc
from ratchet.orchestrator.finished_run import find_model_output, use_store
from ratchet.orchestrator.recipe import Settings, build, find
from ratchet.orchestrator.run_models import (
    RunModel,
    check_name,
    find_model,
    find_promoted,
    promote_model,
)
from ratchet.orchestrator.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def make_model(store: Store, score: float) -> RunModel:
    made = find_model(store, make_run(store, {"merge": EMBEDDER}, {"embedder": "merge"}).run_id)
    return replace(made, metrics={"loss": 1.0, "MAP@25": score})


def promote(store: Store, made: RunModel, name: str = "mine") -> Path:
    inside = {f"model/{file}": text for file, text in EMBEDDER.items()}
    step_id = f"export-{made.run_id}"
    commit = store.lookup(step_id) or made_of(store, step_id, inside)
    return promote_model(store, name, made, commit)


@pytest.mark.slow
def test_a_name_points_to_the_exported_model_and_is_a_base(store: Store) -> None:
    made = make_model(store, 0.5)
    link = promote(store, made)
    assert (link / "model" / "modules.json").read_text() == "[]"
    found = find_promoted(store, "mine")
    assert found is not None
    assert (found.base, found.metrics["MAP@25"], found.part) == ("owner/base", 0.5, "model")
    assert found.locate(store) == link.resolve() / "model"
    with use_store(store):
        output = find_model_output("mine")
        assert find_model_output("nosuch") is None
    assert output is not None
    assert output.step.finished == found.step_id
    assert found.object not in [item.name for item in gc.find_garbage(store, keep=0, grace=-1e9)]


def test_a_recipe_may_use_a_model_twice_and_under_two_names(store: Store, tmp_path: Path) -> None:
    promote(store, made := make_model(store, 0.5))
    data = tmp_path / "data.jsonl"
    data.write_text(
        "".join(f'{{"query": "q{n}", "pos": ["p{n}"], "neg": []}}\n' for n in range(20))
    )
    for name in ("mine", made.run_id):
        steps, *_ = build(
            find("retriever"), Settings({"data": str(data), "base": name}), store
        )  # it also mines
        assert len([one for one in steps if one.finished]) == 1
    steps, *_ = build(
        find("evaluate"), Settings({"data": str(data), "models": f"mine,{made.run_id}"}), store
    )
    assert {one.name for one in steps if one.finished} == {"promoted/mine", f"{made.run_id}/merge"}


def test_a_name_goes_to_the_last_model(store: Store) -> None:
    first, second = make_model(store, 0.5), make_model(store, 0.6)
    for made in (first, second):
        promote(store, made)
    about = json.loads(store.local("promoted", "mine.json").read_text())
    assert about["of"] == second.name


@pytest.mark.parametrize("name", ["", "2026", "a/b", "a b", "../x", ".hidden"])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(
        InputError, match="expected a name of letters, digits, - and _, with a letter or _ first"
    ):
        check_name(name)
