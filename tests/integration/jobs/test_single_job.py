"""A job by itself, from the command line and from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ratchet
from ratchet.orchestrator.cli.main import main


def test_a_job_runs_by_itself_and_prints_its_numbers(
    problem: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"queries": problem.queries, "corpus": problem.corpus, "system": "bm25", "k": "1,25"}
    command = ["run", "jobs/evaluate_retrieval", "--store", str(tmp_path / "store")]
    command += [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    assert main([*command, "--out", str(tmp_path / "made")]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "evaluate_retrieval: " in line]
    shown = {line[1]: float(line[2]) for line in lines}
    assert 0 < shown["map@25"] < 1
    assert shown["queries"] == 60
    files = {"per_query.parquet", "qrels.trec", "ranking", "run.trec"}
    assert {path.name for path in (tmp_path / "made").iterdir()} == files

    run = ratchet.run("jobs/evaluate_retrieval", store=tmp_path / "store", **given)
    assert run.data.steps[0].status == "hit"
    assert run.table.loc["evaluate_retrieval: map@25", "value"] == pytest.approx(shown["map@25"], abs=5e-5)
    assert files <= {path.name for path in run.steps["evaluate_retrieval"].path.iterdir()}
