"""The models that runs made: listed with their metrics, and found by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from store_contents import made_of

from ratchet.errors import InputError
from ratchet.orchestrator.finished_run import find_model_output, use_store
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.run_models import NAME, find_model, list_models
from ratchet.orchestrator.store import Store

EMBEDDER = {"config.json": '{"architectures": ["BertModel"]}', "encoding_config.json": "{}", "modules.json": "[]"}
CROSS_ENCODER = {"config.json": '{"architectures": ["BertForSequenceClassification"]}', "reranker_config.json": "{}"}
YES_NO = {"config.json": '{"architectures": ["Qwen2ForCausalLM"]}', "reranker_config.json": "{}"}
DECODER = {"config.json": "{}", "generation_config.json": "{}"}
ADAPTER = {"adapter_config.json": "{}", "encoding_config.json": "{}"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def make_run(store: Store, models: dict[str, dict[str, str]], best: dict[str, str], base: str = "owner/base") -> RunLog:
    """Begin a run with a finetune, and a step for each model, `name` or `name/part`, with a row in the table."""
    run_log = RunLog.begin(store, "toy", {})
    steps: list[dict[str, Any]] = [{"name": "tune", "step_id": None, "object": None, "inputs": [["base", base]]}]
    rows: list[dict[str, Any]] = [{"label": "BM25", "columns": {}, "model": None}]
    places = {}
    for number, (name, files) in enumerate(models.items()):
        part = "adapter" if files is ADAPTER else "model"
        inside = {f"{part}/{file}": f"{text} " for file, text in files.items()}
        commit = made_of(store, f"{run_log.run_id}{number}", inside, loss=2.0, score=0.5 + number)
        steps.append({"name": name, "step_id": commit.step_id, "object": commit.manifest, "inputs": [["base", "tune"]]})
        places[name] = {"step": name, "part": part}
        columns = {"loss": [[name, "loss"]], "MAP@25": [[name, "score"], [name, "loss"]], "none": [["tune", "loss"]]}
        rows.append({"label": f"row {number}", "columns": columns, "model": places[name]})
    found = {name: places[step] for name, step in best.items()}
    run_log.write("plan.json", {"recipe": "toy", "steps": steps, "rows": rows, "best": found})
    return run_log


def test_models_are_listed_with_kind_base_and_the_numbers_of_their_row(store: Store) -> None:
    models = {"iter0/merge": EMBEDDER, "iter1/merge": EMBEDDER, "rank": CROSS_ENCODER, "sft": ADAPTER, "full": DECODER}
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


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (EMBEDDER, "SentenceTransformer("),
        (CROSS_ENCODER, "CrossEncoder("),
        (YES_NO, "ratchet.models.reranker"),
        (DECODER, "AutoModelForCausalLM.from_pretrained("),
        (ADAPTER, "AutoPeftModel.from_pretrained("),
    ],
)
def test_a_line_of_python_loads_each_kind(store: Store, files: dict[str, str], said: str) -> None:
    make_run(store, {"step": files}, {})
    (found,) = list_models(store)
    code = found.write_code(store)
    assert said in code
    assert str(found.locate(store)) in code
    compile(code, "code", "exec")


def test_names_find_the_best_a_named_one_a_step_and_a_folder_of_it(store: Store) -> None:
    models = {"iter0/merge": EMBEDDER, "iter1/merge": EMBEDDER, "rank": CROSS_ENCODER}
    run = make_run(store, models, {"embedder": "iter1/merge", "reranker": "rank"}).run_id

    def find(own: str) -> str:
        return find_model(store, f"{run[:17]}{own}").step

    names = ("", ":embedder", ":reranker", ":iter0/merge", ":iter0/merge/model")
    assert [find(own) for own in names] == ["iter1/merge", "iter1/merge", "rank", "iter0/merge", "iter0/merge"]
    assert all(NAME.fullmatch(f"{run}{own}") and find_model(store, f"{run}{own}") for own in names)


def test_the_last_row_stands_for_a_run_that_names_no_best_model(store: Store) -> None:
    run_log = make_run(store, {"one": DECODER, "two": DECODER}, {})
    assert find_model(store, run_log.run_id).step == "two"


def test_a_model_of_a_run_is_an_input_with_the_identity_of_its_content(store: Store) -> None:
    run_log = make_run(store, {"one": DECODER}, {})
    with use_store(store):
        output = find_model_output(run_log.run_id)
    assert output.part == "model"
    assert output.step.finished == find_model(store, run_log.run_id).step_id


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("1999", r"model 1999: no such run in .*; expected one of 20.*"),
        ("RUN:embeder", r"has no finished 'embeder'; expected one of iter0/merge, embedder; did you mean 'embedder'\?"),
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
    with pytest.raises(InputError, match="has made no model yet"):
        find_model(store, run_log.run_id)
