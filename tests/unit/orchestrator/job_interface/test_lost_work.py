"""The amount of lost work, from the progress that the lost process reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.orchestrator.job_interface import Context, Resources, lost_work
from ratchet.orchestrator.job_interface.lost_work import WorkTracker, read_lost_work


def context(folder: Path, attempt: int = 1) -> Context:
    return Context("embed", "ba" * 32, attempt, folder / "out", folder, Resources(1, cpus=1.0, gpus=0.0))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(lost_work.time, "time", lambda: self.now)
        monkeypatch.setattr(lost_work.time, "monotonic", lambda: self.now)


def test_work_that_ends_leaves_no_file_and_no_lost_work(tmp_path: Path) -> None:
    one = WorkTracker(context(tmp_path), tmp_path / "a.progress", "shard a", "rows")
    assert one.start() == 0
    one.report(5)
    one.finish()
    assert WorkTracker(context(tmp_path), tmp_path / "a.progress", "shard a", "rows").start() == 0
    assert read_lost_work(tmp_path) == []


def test_what_was_told_beyond_what_was_kept_is_lost_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    path = tmp_path / "training.progress"
    first = WorkTracker(context(tmp_path), path, "training", "steps")
    first.start(0)
    for done in (0, 10, 20, 30):
        first.report(done)
        clock.now += 3
        first.report(done + 1)
    clock.now += 100  # it is gone; somebody notices
    second = WorkTracker(context(tmp_path), path, "training", "steps")
    assert second.start(kept=20) == 1
    found = read_lost_work(tmp_path)
    assert [(one["what"], one["amount"], one["unit"]) for one in found] == [("training", 11.0, "steps")]
    assert found[0]["seconds"] == 3.0, "from the first word beyond step 20 to the last one"
    third = WorkTracker(context(tmp_path, attempt=2), path, "training", "steps")
    assert third.start(kept=20) == 0, "in another attempt"
    assert [one["amount"] for one in read_lost_work(tmp_path)] == [11.0, 0.0]


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "a.progress"
    one = WorkTracker(context(tmp_path), path, "shard a", "rows")
    one.start()
    one.report(7)
    path.write_bytes(path.read_bytes()[:-4])
    assert WorkTracker(context(tmp_path), path, "shard a", "rows").start() == 1
    assert WorkTracker(context(tmp_path), path, "shard a", "rows").start() == 2
    assert [one["amount"] for one in read_lost_work(tmp_path)] == [0.0, 0.0]
