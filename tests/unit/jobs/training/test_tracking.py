"""Training curves as event files of TensorBoard."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tensorboardX.proto.event_pb2 import Event

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


def test_tensorboard_hides_repeated_steps(tmp_path: Path) -> None:
    first = Tracker(tmp_path, "iter0/finetune", 1)
    first.log(1, {"train/loss": 3.0})
    first.log(2, {"train/loss": 2.0})
    Tracker(tmp_path, "iter0/finetune", 2).log(2, {"train/loss": 1.5})
    found = events(tmp_path / "iter0-finetune")
    scalars = [(e.step, v.tag, v.simple_value) for e in found for v in e.summary.value]
    assert sorted(scalars) == [
        (1, "train/loss", 3.0),
        (2, "train/loss", 1.5),
        (2, "train/loss", 2.0),
    ]
    # What came at step 2 before is purged.
    assert sorted(e.step for e in found if e.session_log.status) == [1, 2]


def test_no_folder_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Tracker(None, "x", 1).log(1, {"loss": 1.0})
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_the_folder_ends_the_curves_only(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    tracker = Tracker(tmp_path / "taken", "x", 1)
    tracker.log(1, {"loss": 1.0})
    assert tracker.writer is None


def test_a_full_disk_ends_the_curves_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Tracker(tmp_path, "x", 1)
    tracker.log(1, {"loss": 1.0})

    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tracker.writer, "flush", fail)
    tracker.log(2, {"loss": 0.5})
    tracker.log(3, {"loss": 0.25})
    assert tracker.writer is None
