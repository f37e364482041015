"""The models that runs made: listed with their metrics, and found by their names."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_models import ADAPTER, CROSS_ENCODER, DECODER, EMBEDDER, make_run

from ratchet.errors import InputError
from ratchet.orchestrator.atomic_file import remove_tree
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.finished_run import find_model_output, use_store
from ratchet.orchestrator.run_models import NAME, find_model, list_models
from ratchet.orchestrator.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.mark.slow
def test_models_are_listed(store: Store) -> None:
    models = {
        "iter0/merge": EMBEDDER,
        "iter1/merge": EMBEDDER,
        "rank": CROSS_ENCODER,
        "sft": ADAPTER,
        "full": DECODER,
    }
    run_log = make_run(store, models, {"embedder": "iter1/merge", "reranker": "rank"})
    found = list(list_models(store))
    assert [one.kind for one in found] == ["embedder", "embedder", "reranker", "adapter", "decoder"]
    assert [one.name.removeprefix(f"{run_log.run_id}:") for one in found] == [
        *("iter0/merge", "embedder", "reranker", "sft", "full")
    ]
    assert {one.base for one in found} == {"owner/base"}, "of the chain of steps that made it"
    assert found[1].metrics == {"loss": 2.0, "MAP@25": 1.5}, "of several seeds, the first"
    assert found[1].format_metric() == "MAP@25 1.5000"
    assert found[1].bytes == sum(len(text) + 1 for text in EMBEDDER.values())
    assert list(list_models(store, "1999")) == []


def test_names_of_models(store: Store) -> None:
    models = {"iter0/merge": EMBEDDER, "iter1/merge": EMBEDDER, "rank": CROSS_ENCODER}
    run = make_run(store, models, {"embedder": "iter1/merge", "reranker": "rank"}).run_id

    def find(own: str) -> str:
        return find_model(store, f"{run[:17]}{own}").step

    names = ("", ":embedder", ":reranker", ":iter0/merge", ":iter0/merge/model")
    assert [find(own) for own in names] == [
        "iter1/merge",
        "iter1/merge",
        "rank",
        "iter0/merge",
        "iter0/merge",
    ]
    assert all(NAME.fullmatch(f"{run}{own}") and find_model(store, f"{run}{own}") for own in names)


def test_last_row_is_the_default_model(store: Store) -> None:
    run_log = make_run(store, {"one": DECODER, "two": DECODER}, {})
    assert find_model(store, run_log.run_id).step == "two"


def test_model_of_a_run_is_an_input(store: Store) -> None:
    run_log = make_run(store, {"one": DECODER}, {})
    with use_store(store):
        output = find_model_output(run_log.run_id)
        assert find_model_output("owner/name") is None
    assert output is not None
    assert output.part == "model"
    assert output.step.finished == find_model(store, run_log.run_id).step_id


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("1999", r"model 1999: no such run in .*; expected one of 20.*"),
        (
            "RUN:embeder",
            r"has no finished 'embeder'; expected one of iter0/merge, embedder; did you mean 'embedder'\?",
        ),
        ("RUN:tune", r"has no finished 'tune'; expected one of iter0/merge, embedder"),
        ("RUN:one/nosuch", r"has no finished 'one/nosuch'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(store: Store, name: str, said: str) -> None:
    run_log = make_run(store, {"iter0/merge": EMBEDDER, "one": EMBEDDER}, {"embedder": "one"})
    with pytest.raises(InputError, match=said):
        find_model(store, name.replace("RUN", run_log.run_id))


def test_a_run_without_models_says_so(store: Store) -> None:
    run_log = make_run(store, {"one": {"table.csv": "x"}}, {})
    assert list(list_models(store)) == []
    with pytest.raises(InputError, match="has no model in the store"):
        find_model(store, run_log.run_id)


def test_a_damaged_run_is_named_and_the_others_are_listed(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, damaged = (make_run(store, {"one": EMBEDDER}, {"embedder": "one"}) for _ in range(2))
    (damaged.folder / "plan.json").write_text("{")
    assert main(["models", "--store", str(store.root)]) == 0
    said = capsys.readouterr()
    assert f"{whole.run_id}:embedder (best)" in said.out
    assert f"ratchet: run {damaged.run_id}: " in said.err


def test_a_model_that_was_removed_is_not_listed(store: Store) -> None:
    one = make_run(store, {"one": EMBEDDER}, {"embedder": "one"})
    two = make_run(store, {"two": DECODER}, {})
    (model,) = list_models(store, two.run_id)
    remove_tree(store.root / "steps" / model.step_id)
    assert [found.run_id for found in list_models(store)] == [one.run_id]


def test_a_result_of_another_user_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its owner may change the time of a file that nobody may write."""
    make_run(store, {"one": EMBEDDER}, {})
    (model,) = list_models(store)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.utime", refuse)
    assert store.use(model.step_id) is not None
