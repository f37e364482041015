"""Training curves in TensorBoard, MLflow and W&B. The services' own libraries are used if they are installed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import mlflow
import pytest
from tensorboardX.proto.event_pb2 import Event

from ratchet.jobs.training import tracking
from ratchet.jobs.training.tracking import BackgroundSink, Tracker

RUN = "f" * 64


@pytest.fixture(autouse=True)
def no_services(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)


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


def test_tensorboard_hides_repeated_steps(tmp_path: Path) -> None:
    twice(tmp_path)
    found = events(tmp_path / "iter0-finetune")
    scalars = [
        (event.step, value.tag, value.simple_value)
        for event in found
        for value in event.summary.value
    ]
    assert sorted(scalars) == [
        (1, "train/loss", 3.0),
        (2, "train/loss", 1.5),
        (2, "train/loss", 2.0),
    ]
    assert [event.step for event in found if event.session_log.status] == [
        1,
        2,
    ]  # what came at 2 before is purged


def test_nowhere_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://")
    with Tracker(None, "x", 1, RUN) as tracker:
        tracker.log(1, {"loss": 1.0})
    assert tracker.sinks == []


@pytest.mark.slow
def test_mlflow_finds_the_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    twice(tmp_path)
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("ratchet").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "iter0/finetune"
    assert [
        (m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train/loss")
    ] == [(1, 3.0), (2, 2.0), (2, 1.5)]


@pytest.mark.slow
def test_a_name_that_mlflow_refuses_does_not_end_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with Tracker(tmp_path, "iter0/finetune", 1, RUN) as tracker:
        tracker.log(1, {"valid/map@25": 0.5, "valid/p*": 0.25})
        tracker.log(2, {"valid/map@25": 0.75})
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("ratchet").experiment_id])
    assert run.data.metrics == {"valid/map_at_25": 0.75, "valid/p_": 0.25}
    assert not (tmp_path / "tracking.log").exists()


@pytest.mark.slow
def test_wandb_offline_keeps_the_numbers(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from ratchet.jobs.training.tracking import Tracker\n"
        "with Tracker(Path(sys.argv[2]), 'a/b', 1, 'f' * 64) as tracker: tracker.log(1, {'train/loss': 3.0})\n"
    )
    root = Path(__file__).resolve().parents[4]
    environment = os.environ | {"WANDB_MODE": "offline"}
    subprocess.run(
        [sys.executable, "-c", code, str(root), str(tmp_path)],
        check=True,
        env=environment,
        timeout=120,
    )
    (kept,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert kept.name == f"run-{'f' * 32}.wandb"
    assert b"train/loss" in kept.read_bytes()


class Service:
    """A sink that fails at first, or hangs."""

    def __init__(self, failures: int = 0, hang: float = 0.0) -> None:
        self.failures, self.hang, self.got, self.closed = failures, hang, list[int](), list[bool]()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        time.sleep(self.hang)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("503\nno capacity")
        self.got.append(step)

    def close(self, failed: bool) -> None:
        self.closed.append(failed)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_a_service_that_is_down_for_a_while(tmp_path: Path) -> None:
    service = Service(failures=1)
    sink = BackgroundSink("X", lambda: service, tmp_path / "tracking.log")
    for step in range(5):
        sink.log(step, {"loss": 1.0})
    sink.close(failed=False)
    assert (service.got, service.closed, sink.failing) == ([1, 2, 3, 4], [False], False)
    assert (tmp_path / "tracking.log").read_text() == "X: ConnectionError: 503 no capacity\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "service", [Service(failures=10**9), Service(hang=60)], ids=["fails", "hangs"]
)
def test_an_outage_neither_delays_nor_ends_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Service
) -> None:
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 1.0)
    sink = BackgroundSink("X", lambda: service, tmp_path / "gone" / "tracking.log")
    start = time.monotonic()
    for step in range(100):
        sink.log(step, {"loss": 1.0})
    assert time.monotonic() - start < 5
    sink.close(failed=True)
    assert time.monotonic() - start < 10
    assert sink.failing == bool(service.hang)  # `close` itself succeeds
    assert service.got == []


def test_a_service_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """TensorBoard's own thread dies on a full disk, and the next calls would wait for ever."""
    (tmp_path / "a-file").touch()
    with Tracker(tmp_path / "a-file", "x", 1, RUN) as tracker:
        tracker.log(1, {"loss": 1.0})
        wait_until(lambda: tracker.failing == ["TensorBoard"])


@pytest.fixture
def silent_server() -> Iterator[int]:
    """The port of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield server.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("silent", [True, False], ids=["silent", "closed"])
def test_an_outage_of_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent_server: int, silent: bool
) -> None:
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 2.0)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent_server if silent else 9}")
    start = time.monotonic()
    with Tracker(tmp_path, "x", 1, RUN) as tracker:
        for step in range(50):
            tracker.log(step, {"loss": 1.0})
        assert time.monotonic() - start < 5
    assert time.monotonic() - start < 15
    assert (tmp_path / "tracking.log").read_text().startswith("MLflow: ")
    assert len(events(tmp_path / "x")) > 50, "TensorBoard has everything"
