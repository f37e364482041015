"""A single job as a recipe, from the command line and from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import command
import pytest

import ratchet


def test_a_job_runs_by_itself_and_prints_its_numbers(
    problem: Any, tmp_path: Path, shared_ray: tuple[str, ...]
) -> None:
    given = {"queries": problem.queries, "corpus": problem.corpus, "system": "bm25", "k": "1,25"}
    settings = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    where = ("--store", str(tmp_path / "store"), "--out", str(tmp_path / "made"))
    status, output = command.run("run", "jobs/evaluate_retrieval", *settings, *where, *shared_ray)
    assert status == 0, output
    lines = [
        line.split() for line in output.splitlines() if line.startswith("evaluate_retrieval: ")
    ]
    shown = {line[1]: float(line[2]) for line in lines}
    assert 0 < shown["map@25"] < 1
    assert shown["queries"] == 60
    files = {"per_query.parquet", "qrels.trec", "ranking", "run.trec"}
    assert {path.name for path in (tmp_path / "made").iterdir()} == files

    run = ratchet.run("jobs/evaluate_retrieval", store=tmp_path / "store", **given)
    assert run.data.steps[0].status == "hit"
    assert run.table.loc["evaluate_retrieval: map@25", "value"] == pytest.approx(
        shown["map@25"], abs=5e-5
    )
    assert files <= {path.name for path in run.steps["evaluate_retrieval"].path.iterdir()}
