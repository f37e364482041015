"""`report.json` has all that the report shows, and model cards are made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from run_models import EMBEDDER, make_run

from ratchet.errors import DamagedError
from ratchet.orchestrator.reporting import report_json
from ratchet.orchestrator.reporting.formatting import Estimate
from ratchet.orchestrator.reporting.model_card import write_card
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.reporting.run_data import RunReport, StepReport
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.run_models import find_model
from ratchet.orchestrator.store import Store


def test_what_is_written_is_read(tmp_path: Path) -> None:
    curve = {"loss against step": {"x": [1.0, 2.0], "y": [3.0, 2.5]}}
    step = StepReport(
        "a/b",
        "job",
        "done",
        "1" * 64,
        1,
        2.5,
        [("data", "é$x_1<", "")],
        {"k": (1, 2)},
        {"n": 3},
        curves=curve,
    )
    rows = {"zero-shot": {"MAP@25": 0.25}}
    data = RunReport(
        "toy",
        "20260101-toy",
        "failed",
        1.0,
        2.0,
        "ratchet run toy",
        [step],
        "Doc.",
        rows,
        baselines=["zero-shot"],
    )
    write_report(tmp_path, data)
    found = report_json.read(RunLog(tmp_path))
    assert found is not None
    assert report_json.write(found) == report_json.write(data)
    assert (found.run_id, found.rows, len(found.steps)) == (data.run_id, data.rows, len(data.steps))


def test_keys_that_a_newer_version_added_are_left_out(tmp_path: Path) -> None:
    data = RunReport(
        "toy", "1", "finished", 1.0, 2.0, "ratchet run toy", [StepReport("a", "job", "done")]
    )
    written = json.loads(report_json.write(data))
    written["steps"][0]["new"] = written["new"] = 1
    (tmp_path / report_json.NAME).write_text(json.dumps(written))
    found = report_json.read(RunLog(tmp_path))
    assert found is not None
    assert report_json.write(found) == report_json.write(data)


def test_bytes_that_are_no_text_do_not_lose_the_report(tmp_path: Path) -> None:
    step = StepReport("a", "job", "failed", message="caf\udce9")  # a name of a file in Latin-1
    write_report(
        tmp_path, RunReport("toy", "1", "failed", 1.0, 2.0, "ratchet run --store caf\udce9", [step])
    )
    found = report_json.read(RunLog(tmp_path))
    assert found is not None
    assert found.steps[0].message == "caf\udce9"


def test_intervals_are_kept_and_missing_numbers_are_null(tmp_path: Path) -> None:
    rows = {"one": {"MAP@25": Estimate(0.5, 0.1), "R@25": 0.75, "loss": None}}
    data = RunReport("toy", "20260101-toy", "finished", 1.0, 2.0, "ratchet run toy", [], rows=rows)
    plain = json.loads(report_json.write(data))
    assert plain["schema"] == 1
    assert plain["rows"]["one"] == {
        "MAP@25": {"value": 0.5, "interval": 0.1},
        "R@25": {"value": 0.75},
        "loss": None,
    }
    write_report(tmp_path, data)
    found = report_json.read(RunLog(tmp_path))
    assert found is not None
    assert isinstance(cell := found.rows["one"]["MAP@25"], Estimate)
    assert cell.deviation == 0.1


def test_no_report_is_none_and_another_schema_is_refused(tmp_path: Path) -> None:
    assert report_json.read(RunLog(tmp_path)) is None
    (tmp_path / "report.json").write_text('{"schema": 2}')
    with pytest.raises(DamagedError, match=r"report.json: another schema; expected 1"):
        report_json.read(RunLog(tmp_path))


@pytest.mark.slow
def test_model_card(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    run_log = make_run(
        store, {"iter0/merge": EMBEDDER, "other": EMBEDDER}, {"embedder": "iter0/merge"}
    )
    before = write_card(store, made := find_model(store, run_log.run_id), "me/mine", "mit")
    steps = [
        StepReport("prepare", "prepare", "done", "1" * 64, inputs=[("data", "~/secret/a.csv", "")]),
        StepReport("other", "merge", "done", "3" * 64, inputs=[("corpus", "prepare[corpus]", "")]),
        StepReport(
            "iter0/merge", "merge", "done", "2" * 64, inputs=[("corpus", "prepare[corpus]", "")]
        ),
    ]
    rows = {"row 0": {"MAP@25": Estimate(0.5, 0.1)}}
    command = "ratchet run toy --set data=/home/me/a_b --set test=../b/c.csv --store s3://bucket/p --set x=https://h/y/z"
    data = RunReport("toy", run_log.run_id, "finished", 1.0, 2.0, command, steps, rows=rows)
    write_report(run_log.folder, data)
    card = write_card(store, made, "me/mine", "mit")
    front = yaml.safe_load(card.split("---")[1])
    assert (front["license"], front["base_model"], front["library_name"]) == (
        *("mit", "owner/base", "sentence-transformers"),
    )
    assert 'SentenceTransformer("me/mine")' in card
    assert "± 0.1" in card
    assert (
        "ratchet run toy --set data=a_b --set test=c.csv --store s3://bucket/p --set x=https://h/y/z"
        in card
    )
    assert "secret" not in card, "it is published"
    lineage = card.partition("## Lineage")[2]
    assert "1" * 16 in lineage
    assert "2" * 16 in lineage
    assert "3" * 16 not in lineage, "it is not made of this step"
    assert "## Evaluation" not in before, "the run has no report yet"
