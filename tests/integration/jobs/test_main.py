"""Jobs by themselves, from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def test_a_job_runs_by_itself_and_prints_its_numbers(problem: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jobs", "evaluate_retrieval", "--queries", str(problem.queries)]
    command += ["--corpus", str(problem.corpus), "--out", "made", "--set", "system=bm25", "--set", "k=1,25"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    values = dict(line.rsplit(None, 1) for line in done.stdout.splitlines())
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
