"""Training curves in TensorBoard."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

from ratchet.jobs.training import tracking
from ratchet.jobs.training.tracking import Tracker


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
    with Tracker(folder, "iter0/finetune", 1) as tracker:
        tracker.log(1, {"train/loss": 3.0})
        tracker.log(2, {"train/loss": 2.0})
    with Tracker(folder, "iter0/finetune", 2) as tracker:
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


def test_nowhere_is_nowhere() -> None:
    with Tracker(None, "x", 1) as tracker:
        tracker.log(1, {"loss": 1.0})
    assert tracker.writer is None


def test_a_disk_that_is_full_neither_delays_nor_ends_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "CLOSE_SECONDS", 0.5)
    start = time.monotonic()
    with Tracker(tmp_path, "x", 1) as tracker:
        assert tracker.writer is not None
        tracker.writer.file_writer.event_writer._worker.stop()
        for step in range(1000):
            tracker.log(step, {"loss": 1.0})
    assert time.monotonic() - start < 10
