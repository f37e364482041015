"""`import ratchet`: names, values as settings, and a finished run as Python sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_models import EMBEDDER, make_run

import ratchet
from ratchet.errors import RecipeError, RunError, StoreError
from ratchet.orchestrator.api import Run
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface.settings import write_lines
from ratchet.orchestrator.reporting.formatting import Estimate
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.reporting.run_data import RunReport, StepReport
from ratchet.orchestrator.store import Store
from ratchet.public_names import PLACES

# They plan and run.
pytestmark = pytest.mark.slow


def test_every_name_is_there_and_an_unknown_one_is_not() -> None:
    assert all(getattr(ratchet, name) is not None for names in PLACES.values() for name in names)
    with pytest.raises(AttributeError, match="module 'ratchet' has no attribute 'nosuch'"):
        _ = ratchet.nosuch


def test_the_import_alone_imports_neither_ray_nor_torch() -> None:
    code = "import ratchet, sys; print({'ray', 'torch', 'pyarrow'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_values_are_written_as_the_command_reads_them() -> None:
    settings = {"mine.window": (2, 200), "sft.max_length": None}
    assert write_lines({"data": Path("a/b.jsonl"), "bm25": True, "rate": 1e-4, **settings}) == [
        *("data=a/b.jsonl", "bm25=true", "rate=0.0001", "mine.window=2,200", "sft.max_length=none")
    ]


def test_a_plan_names_its_steps_and_wrong_input_raises(tmp_path: Path) -> None:
    found = ratchet.plan("quickstart", store=tmp_path / "store", iterations=1)
    assert found["prepare"] == "to run"
    assert found["iter0/finetune_embedder"] == "open"
    with pytest.raises(RecipeError, match="did you mean 'iterations'"):
        ratchet.plan("quickstart", store=tmp_path / "store", iteration=1)
    with pytest.raises(StoreError, match="no store there"):
        ratchet.list_models(store=tmp_path / "store")


def test_a_run_has_a_table_models_steps_and_a_report(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    run_log = make_run(store, {"merge": EMBEDDER}, {"embedder": "merge"})
    step_id = run_log.steps()[1]["step_id"]
    steps = [
        StepReport("merge", "merge", "done", step_id, metrics={"n": 3}),
        StepReport("later", "mine", "pending"),
    ]
    rows = {
        "BM25": {"MAP@25": 0.25, "loss": None},
        "row 0": {"MAP@25": Estimate(0.5, 0.1), "loss": 2.0},
    }
    write_report(
        run_log.folder, RunReport("toy", run_log.run_id, "failed", 1.0, 2.0, "", steps, rows=rows)
    )
    run = Run(store, run_log.folder)
    assert (run.run_id, run.status, repr(run)) == (
        run_log.run_id,
        "failed",
        f"<Run {run_log.run_id}: failed>",
    )
    assert run.table.loc["row 0"].to_dict() == {"MAP@25": 0.5, "MAP@25 ±": 0.1, "loss": 2.0}
    assert run.table["loss"].isna()["BM25"]
    assert list(run.steps) == ["merge", "later"]
    assert run.steps["merge"].metrics == {"n": 3}
    assert run.best == run.steps["merge"].path / "model" == run.models[0].locate(store)
    assert run.report.exists()
    with pytest.raises(KeyError, match="did you mean 'merge'"):
        run.steps["merg"]
    with pytest.raises(RunError, match="step later: no result"):
        _ = run.steps["later"].path
    assert [one.name for one in ratchet.list_models(store=store.root)] == [
        f"{run_log.run_id}:embedder"
    ]


def test_plans_and_runs_are_printed_for_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(tmp_path / "store")
    run_log = make_run(store, {"merge": EMBEDDER}, {"embedder": "merge"})
    run_log.event("done", "merge", seconds=2.0)
    assert main(["status", "--json", "--store", str(store.root)]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run"], row["recipe"], row["state"]) == (run_log.run_id, "toy", "killed")
    assert main(["status", run_log.run_id, "--json", "--store", str(store.root)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(step["step"], step["status"], step["seconds"]) for step in shown] == [
        ("tune", "pending", None),
        ("merge", "done", 2.0),
    ]
    assert main(["plan", "quickstart", "--json", "--store", str(tmp_path / "none")]) == 0
    steps = {step["step"]: step for step in json.loads(capsys.readouterr().out)}
    assert (steps["prepare"]["state"], steps["prepare"]["job"]) == ("to run", "prepare")
    assert steps["iter0/mine"]["reasons"] == [
        f"depends on {name}, which would run"
        for name in ("prepare", "zero_shot/embed_corpus", "zero_shot/embed_train")
    ]
