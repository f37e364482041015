"""The recipes through the command, with MiniLM on a real Ray: a killed driver, the report, wrong input."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from quickstart_runs import SMALL, run, start
from store_contents import addresses, started
from waiting import wait_for

pytestmark = pytest.mark.timeout(1200)

DETERMINISTIC = (
    "prepare",
    "bm25/evaluate",
    "zero_shot/embed_test",
    "zero_shot/embed_corpus",
    "zero_shot/embed_train",
    "iter0/mine",
)


@pytest.mark.soak
def test_a_killed_run_does_no_finished_step_again(tmp_path: Path) -> None:
    """Takes two minutes: one iteration of the recipe with MiniLM, killed once."""
    process = start(tmp_path, "run", "quickstart", *SMALL)
    wait_for(started(tmp_path, "iter0/finetune_embedder"), "training was never started", 900)
    time.sleep(12)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = addresses(tmp_path)
    assert set(DETERMINISTIC) <= set(before)

    status, output = run(tmp_path, "run", "quickstart", *SMALL)
    assert status == 0, output
    after = addresses(tmp_path)
    assert {"iter0/evaluate", "zero_shot/evaluate"} <= set(after)
    assert {name: after[name] for name in before} == before, "a finished step was done again"


def test_a_run_has_a_report_and_ranks_for_new_queries(
    tmp_path: Path, shared_ray: tuple[str, ...]
) -> None:
    """Takes a minute: one iteration of the recipe with MiniLM."""
    status, output = run(tmp_path, "run", "quickstart", *SMALL)
    assert status == 0, output
    for label in (
        "BM25",
        "zero-shot",
        "nearest training queries",
        "iteration 0",
        "iteration 0, fused",
    ):
        assert label in output
    newest = sorted(tmp_path.glob("runs/*"))[-1]
    page = (newest / "report.html").read_text()
    assert "iteration 0" in page
    assert "loss" in page

    status, again = run(tmp_path, "run", "quickstart", *SMALL)
    assert status == 0
    assert "starting Ray" not in again

    status, explained = run(
        tmp_path, "plan", "quickstart", "--explain", *SMALL, "--set", "iter0/mine.num_negatives=3"
    )
    assert status == 0
    assert "setting num_negatives: 8 -> 3" in explained
    status, shown = run(tmp_path, "status")
    assert "finished" in shown

    # The model of the run, fused with BM25 and training queries as in the run, ranks for new queries without labels.
    (tmp_path / "new.txt").write_text("Simplify 2/4\n3 + 4 x 2 = 14\n")
    options = (
        "--set",
        f"run={newest.name}",
        "--set",
        "write_predictions.top=3",
        "--set",
        "write_predictions.columns=id,ids",
    )
    status, predicted = run(
        tmp_path,
        "run",
        "predict",
        *options,
        *shared_ray,
        "--set",
        f"queries={tmp_path / 'new.txt'}",
    )
    assert status == 0, predicted
    assert {"bm25/rank_queries", "model/rank_knn", "fuse"} <= set(addresses(tmp_path))
    assert not set(addresses(tmp_path)) & {"model/embed_corpus"}, "the corpus was embedded again"
    folder = next(tmp_path.glob("runs/*-predict-*"))
    header, *rows = (folder / "predictions.csv").read_text().splitlines()
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    ranked = [line.split() for line in (folder / "predictions.trec").read_text().splitlines()]
    assert header == "id,ids"
    assert [line["query"] for line in lines] == ["Simplify 2/4", "3 + 4 x 2 = 14"]
    for row, line in zip(rows, lines, strict=True):
        documents = [document["id"] for document in line["documents"]]
        assert row == f"{line['id']},{' '.join(documents)}"
        assert documents == [one[2] for one in ranked if one[0] == line["id"]]
        assert len(documents) == 3
        assert all(document["text"] for document in line["documents"])


def broken(folder: Path, what: str) -> Sequence[str]:
    file = folder / "x.jsonl"
    rows = "".join(
        json.dumps({"query": f"q{i}", "pos": [f"p{i}"], "neg": []}) + "\n" for i in range(30)
    )
    options = {
        "json": lambda: file.write_text(rows + '{"query": "q", "pos": ["p"]\n'),
        "positives": lambda: file.write_text(rows + '{"query": "q", "pos": []}\n'),
        "utf8": lambda: file.write_bytes(rows.encode() + b'{"query": "\xff"}\n'),
        "empty": lambda: file.write_text(""),
        "weights": lambda: (
            file.write_text(rows),
            (folder / "model").mkdir(),
            (folder / "model" / "config.json").write_text('{"model_type": "bert"}'),
        ),
        "setting": lambda: file.write_text(rows),
        "key": lambda: file.write_text(rows),
        "path": lambda: None,
    }
    options[what]()
    extra = {
        "weights": ["--set", f"base={folder / 'model'}"],
        "setting": ["--set", "finetune_embedder.learning_rate=-1"],
        "key": ["--set", "finetune_embedder.learning_rat=1"],
    }
    return ["run", "retriever", "--set", f"data={file}", *extra.get(what, [])]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("json", "x.jsonl:31: not JSON"),
        pytest.param("positives", "x.jsonl:31: positive [] given", marks=pytest.mark.soak),
        pytest.param("utf8", "x.jsonl:31: byte 0xff", marks=pytest.mark.soak),
        pytest.param("empty", "x.jsonl: the file is empty", marks=pytest.mark.soak),
        ("weights", "tokenizer"),
        pytest.param("setting", "learning_rate", marks=pytest.mark.soak),
        pytest.param("key", "did you mean 'learning_rate'", marks=pytest.mark.soak),
        pytest.param("path", "x.jsonl: not found", marks=pytest.mark.soak),
    ],
)
def test_bad_input_is_named_before_ray_starts(tmp_path: Path, what: str, said: str) -> None:
    store = tmp_path / "store"
    status, output = run(store, *broken(tmp_path, what))
    assert status == 2, output
    assert said in output
    assert "Traceback" not in output
    assert "starting Ray" not in output
    assert not list(store.glob("runs/*")), "a run was begun"
