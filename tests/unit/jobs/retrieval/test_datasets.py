"""Data sets that a recipe's parameters name: paths with options, data sets of the hub, data for evaluation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.data.tables import read_shards
from ratchet.errors import DataError, InputError
from ratchet.jobs.retrieval import prepare
from ratchet.jobs.retrieval.datasets import find_datasets, find_queries, find_size
from ratchet.jobs.retrieval.prepare import run
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface import Context, Result, Source
from ratchet.orchestrator.job_interface.source_digest import SourceDigests

MakeContext = Callable[..., Context]


def write(path: Path, name: str, count: int, **columns: str) -> Path:
    """Write pairs as JSON Lines: `name 0` with the positive `about name 0`."""
    names = {"query": "query", "positive": "positive"} | columns
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (
        {names["query"]: f"{name} {i}", names["positive"]: f"about {name} {i}"}
        for i in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def prepared(context: MakeContext, **given: str) -> tuple[dict[str, list[dict[str, Any]]], Result]:
    """Run `prepare` on what the parameters name. Return its tables and its result."""
    values = find_datasets(**given)
    paths = {
        key: tuple(source.path for source in found)
        for key, found in values.items()
        if key != "reading"
    }
    config, inputs, ctx = (
        prepare.Config(reading=values["reading"]),
        prepare.Inputs(**paths),
        context(),
    )
    predicted = prepare.check(config, inputs, {})
    result = run(ctx, config, inputs)
    assert predicted.metrics.items() <= result.metrics.items()
    return {
        name: read_shards(ctx.out / name).to_pylist()
        for name in ("corpus", "train", "valid", "test")
    }, result


def numbers(rows: list[dict[str, Any]], name: str) -> list[int]:
    return [int(row["text"].split()[1]) for row in rows if row["text"].startswith(f"{name} ")]


def test_files_for_valid_and_test_are_never_trained_on(
    context: MakeContext, tmp_path: Path
) -> None:
    files = {
        name: str(write(tmp_path / f"{name}.jsonl", name, 9)) for name in ("data", "valid", "test")
    }
    tables, result = prepared(context, **files)
    assert numbers(tables["train"], "data") == numbers(tables["valid"], "valid") == list(range(9))
    assert numbers(tables["test"], "test") == list(range(9))
    assert [len(tables[name]) for name in ("corpus", "train", "valid", "test")] == [27, 9, 9, 9]
    assert result.note == ""
    text = {row["id"]: row["text"] for row in tables["corpus"]}
    for row in (*tables["train"], *tables["valid"], *tables["test"]):
        assert [text[name] for name in row["positives"]] == [f"about {row['text']}"]


def test_test_queries_that_are_trained_on_are_reported(
    context: MakeContext, tmp_path: Path
) -> None:
    data = write(tmp_path / "data.jsonl", "q", 20)
    _, result = prepared(context, data=str(data), test=str(write(tmp_path / "test.jsonl", "q", 5)))
    assert result.note.endswith(
        "training queries have the text of a test query, such as " + f"{data}:1"
    )


def test_one_file_for_test_may_be_small(context: MakeContext, tmp_path: Path) -> None:
    data, test = write(tmp_path / "data.jsonl", "q", 20), write(tmp_path / "test.jsonl", "t", 1)
    tables, _ = prepared(context, data=str(data), test=str(test))
    assert [len(tables[name]) for name in ("train", "valid", "test")] == [14, 6, 1]
    with pytest.raises(
        DataError, match=r"test\.jsonl: 1 documents in the corpus; expected at least 2"
    ):
        prepared(context, data="", test=str(test))


def test_teacher_scores_for_train_only(context: MakeContext, tmp_path: Path) -> None:
    rows = [
        {
            "query": f"q {i}",
            "pos": [f"p {i}"],
            "neg": ["n"],
            "pos_scores": [1.5],
            "neg_scores": [0.5],
        }
        for i in range(9)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    test = str(write(tmp_path / "test.jsonl", "t", 3))
    tables, _ = prepared(context, data=str(tmp_path / "data.jsonl"), test=test)
    assert all(row["teacher_positive_scores"] == [1.5] for row in tables["train"])
    assert all(row["teacher_positive_scores"] is None for row in tables["test"])


def test_every_file_counts_and_paths_do_not(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", name, 5)
    values = find_datasets(f"{tmp_path}/a.jsonl", test=f"{tmp_path}/b.jsonl?name=x")
    assert values["data"] == (Source(tmp_path / "a.jsonl", str(tmp_path / "a.jsonl")),)
    assert [source.path for source in values["test"]] == [tmp_path / "b.jsonl"]
    assert values["reading"] == ("", "name=x")
    assert find_datasets(str(tmp_path / "a.jsonl"))["reading"] == ()


def test_options_belong_to_paths(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", "a", 5)
    with pytest.raises(
        InputError,
        match=r"prepare\.reading: 2 given for 1 paths; expected one for each path of data",
    ):
        prepare.check(prepare.Config(reading=("", "")), prepare.Inputs((file,)), {})
    named = write(tmp_path / "what?query=x.jsonl", "a", 5)
    assert find_datasets(str(named))["data"][0].path == named


@pytest.mark.parametrize(
    ("options", "readings", "expected"),
    [
        ("", (), ""),
        ("", ("", "name=x"), ""),
        ("", ("template=%7Ba%7D&positive=b", "name=x&template=%7Ba%7D"), "template=%7Ba%7D"),
        ("?id=number", ("instruction=Find",), "id=number&instruction=Find"),
        ("?query=title", ("instruction=Find", "template=%7Ba%7D"), "query=title"),
    ],
)
def test_new_queries_are_read_as_the_data(
    tmp_path: Path, options: str, readings: tuple[str, ...], expected: str
) -> None:
    file = write(tmp_path / "new.jsonl", "a", 5)
    found = find_queries(f"{file}{options}", "predict", readings)
    assert (found["queries"].path, found["reading"]) == (file, expected)


def test_new_queries_need_their_instruction(tmp_path: Path) -> None:
    file = write(tmp_path / "new.jsonl", "a", 5)
    with pytest.raises(
        InputError,
        match=r"predict: .*new\.jsonl given, for data sets with several templates or instr",
    ):
        find_queries(str(file), "predict", ("instruction=Find", ""))


def beir(folder: Path, split: str = "test") -> Path:
    (folder / "qrels").mkdir(parents=True)
    for file, letter in (("corpus", "d"), ("queries", "q")):
        rows = ({"_id": f"{letter}{i}", "text": f"{letter} {i}"} for i in range(12))
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / f"qrels/{split}.tsv").write_text("".join(f"q{i}\td{i}\t1\n" for i in range(12)))
    return folder


@pytest.mark.parametrize("parameter", ["data", "test"])
def test_a_folder_with_test_queries_only_is_evaluated_whole(
    context: MakeContext, tmp_path: Path, parameter: str
) -> None:
    tables, result = prepared(context, **{"data": "", parameter: str(beir(tmp_path / "b"))})
    assert [len(tables[name]) for name in ("corpus", "train", "valid", "test")] == [12, 0, 0, 12]
    assert [row["id"] for row in tables["test"]] == [f"q{i}" for i in range(12)]
    assert result.metrics["train/queries"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("parameter", ["data", "test"])
def test_evaluation_without_iterations(
    tmp_path: Path, parameter: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "plan",
        "retriever",
        "--store",
        str(tmp_path / "s"),
        "--set",
        f"{parameter}={beir(tmp_path / 'b')}",
    ]
    assert main([*given, "--set", "iterations=0"]) == 0
    assert "bm25/evaluate" in capsys.readouterr().out
    assert main([*given, "--set", "iterations=1"]) == 2
    said = "finetune_embedder: the data has queries for test only; expected some to train on; add train.tsv"
    assert said in capsys.readouterr().err


def test_nothing_given_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "misconceptions"]) == 2
    assert (
        "data: nothing given; expected the path of a file or folder; add --set data=PATH"
        in capsys.readouterr().err
    )


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of `datasets` with a data set owner/toy of the hub: two splits, one of them in two files."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets.disable_progress_bars()
    folder = tmp_path / "toy"
    folder.mkdir()
    for split, count in (("train", 30), ("test", 4)):
        table = {
            "question": [f"{split} {i}" for i in range(count)],
            "answer": [f"about {i}" for i in range(count)],
        }
        pq.write_table(pa.table(table), folder / f"{split}.parquet")
    built = datasets.load_dataset(str(folder))
    assert built["train"].num_rows == 30
    # A data set of the hub differs in the name of the folder only, which begins with its owner.
    shutil.move(tmp_path / "cache/toy", tmp_path / "cache/owner___toy")
    shutil.rmtree(folder)
    return tmp_path / "cache"


def test_data_sets_of_the_hub_are_read_from_its_cache(context: MakeContext, hub: Path) -> None:
    """Without the network: the splits are those of the parameters, unless they are named."""
    tables, _ = prepared(context, data="hf://owner/toy", test="hf://owner/toy")
    assert sorted(numbers(tables["train"], "train") + numbers(tables["valid"], "train")) == list(
        range(30)
    )
    assert numbers(tables["test"], "test") == list(range(4))
    assert len(tables["corpus"]) == 30, "answers of both splits are one document"
    tables, _ = prepared(
        context, data="hf://owner/toy?split=train&query=answer&positive=question&config=default"
    )
    assert {row["text"] for row in tables["corpus"]} == {f"train {i}" for i in range(30)}


def test_the_content_of_the_split_is_what_counts(hub: Path, tmp_path: Path) -> None:
    digests = SourceDigests(tmp_path / "digests.json")
    (train,), (test,) = (
        find_datasets("hf://owner/toy")["data"],
        find_datasets("", test="hf://owner/toy")["test"],
    )
    before = [digests.digest(source) for source in (train, test)]
    assert before[0] != before[1]
    (file,) = hub.rglob("toy-test.arrow")
    file.write_bytes(file.read_bytes() + b"\\0")
    (file.parent / "another-file").write_text("changed")
    again = SourceDigests(tmp_path / "digests.json")
    (train,), (test,) = (
        find_datasets("hf://owner/toy")["data"],
        find_datasets("", test="hf://owner/toy")["test"],
    )
    assert again.digest(train) == before[0]
    assert again.digest(test) != before[1]


HUB_MISTAKES = [
    (
        "hf://owner/toy?split=dev",
        r"data: hf://owner/toy: Unknown split .dev.*; expected a data set with the split 'dev'",
    ),
    (
        "hf://owner/none",
        r"data: hf://owner/none: Couldn't find cache for owner/none; .* check the name, \?config=",
    ),
    (
        "hf://owner/toy?config=xy",
        r"data: hf://owner/toy: Couldn't find cache for owner/toy for config 'xy' Available",
    ),
    ("hf://owner/toy?revision=0123abc", r"data: hf://owner/toy: the cache has revision"),
]


@pytest.mark.parametrize(("given", "said"), HUB_MISTAKES)
def test_what_the_hub_does_not_have_is_refused_at_plan(hub: Path, given: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        find_datasets(given)


def test_a_column_that_a_hub_data_set_lacks_is_refused_at_plan(
    hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "plan",
        "retriever",
        "--store",
        str(tmp_path / "s"),
        "--set",
        "data=hf://owner/toy?query=title",
    ]
    assert main(given) == 2
    assert (
        "toy-train.arrow: row 1: no column for the query; found 'question, answer'; expected title;"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("count", "size"), [(11, "other"), (12, "few"), (199, "few"), (200, "other")]
)
def test_few_queries_are_told_from_others(tmp_path: Path, count: int, size: str) -> None:
    path = write(tmp_path / "pairs.jsonl", "a", count)
    found, said = find_size(find_datasets(str(path)))
    assert found == size
    assert said.startswith(f"{count} groups of queries, which show a metric to ± ") == (
        size == "few"
    )
    test = write(tmp_path / "test.jsonl", "b", 20)
    assert find_size(find_datasets(str(path), test=str(test)))[0] == "other"


def test_queries_that_the_data_split_are_not_few(tmp_path: Path) -> None:
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": f"{i}", "text": f"text {i}"}) + "\n" for i in range(40)]
    for name in ("corpus", "queries"):
        (folder / f"{name}.jsonl").write_text("".join(lines))
    for split, some in (("train", range(20)), ("test", range(20, 40))):
        rows = "".join(f"{i}\t{i}\t1\n" for i in some)
        (folder / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    assert find_size(find_datasets(str(folder)))[0] == "other"
    (folder / "qrels" / "test.tsv").unlink()
    assert find_size(find_datasets(str(folder)))[0] == "few"
