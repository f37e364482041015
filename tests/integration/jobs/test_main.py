"""Jobs by themselves, from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ratchet.data.tables import read_shards

ROOT = Path(__file__).resolve().parents[3]


def run_job(command: list[str], folder: Path) -> dict[str, str]:
    """Run `python -m jobs` in a folder and return the metrics that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "jobs", *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(line.rsplit(None, 1) for line in done.stdout.splitlines())


def test_a_job_runs_by_itself_and_prints_its_numbers(problem: Any, tmp_path: Path) -> None:
    command = ["evaluate_retrieval", "--queries", str(problem.queries), "--corpus", str(problem.corpus)]
    values = run_job([*command, "--out", "made", "--set", "system=bm25", "--set", "k=1,25"], tmp_path)
    assert next(iter(values)) == "map@25"
    assert 0 < float(values["map@25"]) < 1
    assert values["queries"] == "60"
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == [
        "per_query.parquet",
        "qrels.trec",
        "ranking",
        "run.trec",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "problem"], "no work folder is left"


def test_a_text_file_is_embedded(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("One text.\nAnother one.\n")
    model = "sentence-transformers/all-MiniLM-L6-v2"
    values = run_job(["embed", "--model", model, "--texts", "texts.txt", "--out", "vectors"], tmp_path)
    assert values["rows"] == "2"
    assert read_shards(tmp_path / "vectors")["id"].to_pylist() == ["1", "2"]
