"""A run on MLflow and Weights & Biases, by their own libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import mlflow
import pytest

from ratchet.orchestrator.reporting import trackers
from ratchet.orchestrator.reporting.formatting import Estimate
from ratchet.orchestrator.reporting.report import write_report
from ratchet.orchestrator.reporting.run_data import RunReport, StepReport

pytestmark = pytest.mark.slow

STEPS = [
    StepReport(
        "iter0/mine",
        "mine",
        "done",
        "a" * 64,
        config={"window": (2, 100)},
        metrics={"queries": 5, "kind": "x"},
    ),
    StepReport(
        *("iter0/finetune", "finetune_embedder", "hit", "b" * 64),
        inputs=[("mined", "iter0/mine", "0123")],
        metrics={"map@25": 0.5},
    ),
    StepReport("iter1/mine", "mine", "failed", "c" * 64, message="no memory"),
    StepReport("iter1/finetune", "finetune_embedder", "pending", "d" * 64),
]
ROWS = {
    "BM25": {"MAP@25": 0.1, "time": 2.0},
    "iteration 0": {"MAP@25": Estimate(0.5, 0.02), "loss": None},
}
REPORT = RunReport(
    *("retriever", "20261126-1200", "failed", 1.0, 2.0, "ratchet run retriever", STEPS),
    rows=ROWS,
    parameters={"data": "x" * 1000, "iterations": 2},
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run with its report."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)  # MLflow keeps files of reports below it
    write_report(tmp_path / "run", REPORT)
    return tmp_path / "run"


def test_mlflow_has_the_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite:///{folder.parent}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    for _ in range(2):  # the second time nothing is made again
        assert list(trackers.send_report(REPORT, folder)) == []
    client = mlflow.MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("ratchet").experiment_id])
    (parent,) = found
    assert parent.data.metrics == {
        "BM25/MAP_at_25": 0.1,
        "BM25/time": 2.0,
        "iteration 0/MAP_at_25": 0.5,
    }
    assert parent.data.params == {"data": "x" * 500, "iterations": "2"}
    assert parent.info.status == "FAILED"
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert files == {"report.html", "report.md", "report.json"}


def test_wandb_offline_keeps_table_steps_and_report(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[1:3]\n"
        "from ratchet.orchestrator.reporting import trackers\n"
        "from test_trackers import REPORT\n"
        "print(list(trackers.send_report(REPORT, Path(sys.argv[3]))))\n"
    )
    root, environment = Path(__file__).resolve().parents[4], os.environ | {"WANDB_MODE": "offline"}
    arguments = [sys.executable, "-c", code, str(root), str(Path(__file__).parent), str(folder)]
    done = subprocess.run(
        arguments, check=True, env=environment, timeout=120, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.strip().splitlines()[-1] == "[]"
    (kept,) = (folder / "wandb").glob("offline-run-*/run-*.wandb")
    assert kept.name == "run-20261126-1200.wandb"
    content = kept.read_bytes()
    for text in (b"iteration 0/MAP@25", b"iterations", b"window"):
        assert text in content
    (table,) = kept.parent.rglob("*.table.json")
    assert "iter1/finetune" in table.read_text()
    assert list(kept.parent.rglob("*.html"))


def test_an_outage_is_said_and_does_not_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (note,) = trackers.send_report(REPORT, folder)
    assert note.startswith("MLflow does not have this run: ")
