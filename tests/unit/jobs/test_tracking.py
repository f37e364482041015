"""Curves where people look at them. The services' own libraries are used where they are installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from ratchet.jobs.training.tracking import Tracker

RUN = "f" * 64


def events(folder: Path) -> list[Event]:
    """TFRecord: length, its checksum, the message, its checksum."""
    found = []
    for path in sorted(folder.rglob("events.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            found.append(Event.FromString(data[at + 12 : at + 12 + size]))
            at += 16 + size
    return found


def twice(folder: Path) -> None:
    """A life that ends after step 2, and one that goes on with it."""
    with Tracker(folder, "iter0/finetune", 1, RUN) as tracker:
        tracker.log(1, {"train/loss": 3.0})
        tracker.log(2, {"train/loss": 2.0})
    with Tracker(folder, "iter0/finetune", 2, RUN) as tracker:
        tracker.log(2, {"train/loss": 1.5})


def test_tensorboard_has_the_scalars_and_hides_what_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    twice(tmp_path)
    found = events(tmp_path / "iter0-finetune")
    scalars = [(event.step, value.tag, value.simple_value) for event in found for value in event.summary.value]
    assert sorted(scalars) == [(1, "train/loss", 3.0), (2, "train/loss", 1.5), (2, "train/loss", 2.0)]
    assert [event.step for event in found if event.session_log.status] == [1, 2]  # what came at 2 before is purged


def test_nowhere_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://")
    with Tracker(None, "x", 1, RUN) as tracker:
        tracker.log(1, {"loss": 1.0})
    assert tracker.sinks == []


def test_mlflow_finds_the_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    twice(tmp_path)
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("ratchet").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "iter0/finetune"
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train/loss")] == [
        (1, 3.0),
        (2, 2.0),
        (2, 1.5),
    ]


def test_wandb_offline_keeps_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from ratchet.jobs.training.tracking import Tracker\n"
        "with Tracker(Path(sys.argv[2]), 'a/b', 1, 'f' * 64) as tracker: tracker.log(1, {'train/loss': 3.0})\n"
    )
    root = Path(__file__).resolve().parents[3]
    environment = os.environ | {"WANDB_MODE": "offline"}
    subprocess.run([sys.executable, "-c", code, str(root), str(tmp_path)], check=True, env=environment, timeout=120)
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert kept.name == f"run-{'f' * 32}.wandb"
    assert b"train/loss" in kept.read_bytes()
