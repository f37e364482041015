"""Differences between two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from store_contents import made_of

from ratchet.errors import StoreError
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.reporting.formatting import Estimate, judge_difference
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.reporting.run_data import RunReport, StepReport
from ratchet.orchestrator.reporting.run_diff import compare_runs
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def make_run(
    store: Store, steps: dict[str, Any], rows: dict[str, Any], **parameters: Any
) -> RunLog:
    """Make a run that has ended. steps: name -> (config, whether it has a result)."""
    run_log = RunLog.begin(store, "toy", {})
    made = []
    for name, (config, has_result) in steps.items():
        step_id = f"{name}-{json.dumps(config)}".encode().hex()
        if has_result and store.lookup(step_id) is None:
            made_of(store, step_id, {"a.txt": name})
        made.append(
            StepReport(
                name, "job", "done" if has_result else "failed", step_id, 0, 1.0, config=config
            )
        )
    write_report(
        run_log.folder,
        RunReport(
            "toy", run_log.run_id, "finished", 1.0, 2.0, "", made, "", rows, parameters=parameters
        ),
    )
    return run_log


def test_parameters_numbers_and_steps(store: Store) -> None:
    one = make_run(
        store,
        {"same": ({}, True), "failed": ({"rate": 1}, True), "gone": ({}, True)},
        {"BM25": {"MAP@25": 0.1}, "row": {"MAP@25": Estimate(0.5, 0.03), "loss": 2.0, "time": 1.0}},
        seed=1,
        data="x",
    )
    other = make_run(
        store,
        {"same": ({}, True), "failed": ({"rate": 2}, False), "new": ({}, True)},
        {
            "BM25": {"MAP@25": 0.1},
            "row": {"MAP@25": Estimate(0.56, 0.04), "loss": None, "time": 2.0},
        },
        seed=2,
        data="x",
    )
    found = compare_runs(store, one, other)
    assert found.parameters == {"seed": (1, 2)}
    assert found.equal_steps == 1
    assert found.steps == {
        "failed": ["setting rate: 1 -> 2", "has no result after"],
        "gone": ["removed"],
        "new": ["added"],
    }
    numbers = {(one["row"], one["column"]): one for one in found.numbers}
    assert set(numbers) == {("BM25", "MAP@25"), ("row", "MAP@25")}
    assert numbers["row", "MAP@25"]["verdict"] == "more than noise"
    assert numbers["BM25", "MAP@25"]["verdict"] == ""
    assert judge_difference(Estimate(0.5, 0.03), Estimate(0.54, 0.04)) == "within noise"
    assert judge_difference(Estimate(0.5, 0.03), Estimate(0.449, 0.04)) == "more than noise"
    assert judge_difference(0.5, Estimate(0.6, 0.01)) == ""


def test_the_command_prints_text_and_json(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        make_run(store, {"a": ({"k": k}, True)}, {"row": {"MAP@25": k / 10}}, k=k).run_id
        for k in (1, 2)
    ]
    assert main(["diff", *runs, "--store", str(store.root)]) == 0
    said = capsys.readouterr().out
    assert "parameter k: 1 -> 2" in said
    assert "0.1000  0.2000      0.1000" in said
    assert main(["diff", *runs, "--json", "--store", str(store.root)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["runs"], found["numbers"][0]["verdict"]) == (runs, "")


def test_a_run_that_has_not_ended_is_refused(store: Store) -> None:
    ended, running = make_run(store, {}, {}), RunLog.begin(store, "toy", {})
    with pytest.raises(
        StoreError, match=f"run {running.run_id}: no report; expected a run that ended"
    ):
        compare_runs(store, ended, running)
