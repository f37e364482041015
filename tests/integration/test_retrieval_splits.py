"""The retriever recipe through the command, on a tiny model: folds, and training on everything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quickstart_runs import run
from store_contents import results

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def settings(concepts: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The tiny BERT, and 60 queries of 12 concepts."""
    file = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [
        {
            "query": f"q{q % 12}x{q % 5} q{q % 12}x{q % 3} n{q % 40} n{q // 2}",
            "pos": [f"t{q % 12}x0 t{q % 12}x1"],
        }
        for q in range(60)
    ]
    file.write_text("".join(json.dumps({**row, "neg": ["t1x7 t2x7"]}) + "\n" for row in rows))
    return [
        part for line in (f"data={file}", f"base={concepts / 'base'}") for part in ("--set", line)
    ]


@pytest.mark.soak
def test_two_folds_end_in_one_table(settings: list[str], tmp_path: Path) -> None:
    folds = ("--set", "folds=2", "--set", "iterations=0", "--set", "split_by=document")
    status, output = run(tmp_path, "run", "retriever", *settings, *folds)
    assert status == 0, output
    found = results(tmp_path)
    tested = [found[f"fold{i}/prepare"].record["name"] for i in range(2)]
    assert len(set(tested)) == 2
    lines = [line for line in output.splitlines() if line.startswith(("BM25", "zero-shot"))]
    assert [line.count(" ± ") for line in lines] == [3, 3, 3], output
    header = next(line for line in output.splitlines() if "MAP@25" in line and "R@25" in line)
    assert "unseen MAP@25 (30)" in header
    assert " seen MAP@25" not in header, "no label of the test split is in training"
    (report,) = tmp_path.glob("runs/*/report.md")
    assert "±" in report.read_text()


@pytest.mark.soak
def test_everything_is_trained_on_for_a_submission(settings: list[str], tmp_path: Path) -> None:
    nothing = (
        "test_fraction=0",
        "validation_fraction=0",
        "iterations=1",
        "finetune_embedder.epochs=1",
        "mining=given",
    )
    status, output = run(
        tmp_path, "run", "retriever", *settings, *(part for s in nothing for part in ("--set", s))
    )
    assert status == 0, output
    assert set(results(tmp_path)) == {"prepare", "iter0/finetune_embedder", "iter0/merge_embedder"}
    (row,) = [line for line in output.splitlines() if line.startswith("iteration 0")]
    assert row.startswith(
        "iteration 0 (kept the last epoch: nothing is held out, nothing was compared)"
    )
    (report,) = tmp_path.glob("runs/*/report.md")
    assert "nothing was compared" in report.read_text()
