"""What a loss cost, from what the lost work told."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs import trail
from jobs.job import Context, Resources
from jobs.trail import Trail, losses


def context(folder: Path, attempt: int = 1) -> Context:
    return Context("embed", "ba" * 32, attempt, folder / "out", folder, Resources(1, cpus=1.0, gpus=0.0))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(trail.time, "time", lambda: self.now)
        monkeypatch.setattr(trail.time, "monotonic", lambda: self.now)


def test_work_that_ends_leaves_no_trail_and_no_loss(tmp_path: Path) -> None:
    one = Trail(context(tmp_path), tmp_path / "a.trail", "shard a", "rows")
    assert one.begin() == 0
    one.tell(5)
    one.end()
    assert Trail(context(tmp_path), tmp_path / "a.trail", "shard a", "rows").begin() == 0
    assert losses(tmp_path) == []


def test_what_was_told_beyond_what_was_kept_is_lost_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    path = tmp_path / "training.trail"
    first = Trail(context(tmp_path), path, "training", "steps")
    first.begin(0)
    for done in (0, 10, 20, 30):
        first.tell(done)
        clock.now += 3
        first.tell(done + 1)
    clock.now += 100  # it is gone; somebody notices
    second = Trail(context(tmp_path), path, "training", "steps")
    assert second.begin(kept=20) == 1
    found = losses(tmp_path)
    assert [(one["what"], one["amount"], one["unit"]) for one in found] == [("training", 11.0, "steps")]
    assert found[0]["seconds"] == 3.0, "from the first word beyond step 20 to the last one"
    third = Trail(context(tmp_path, attempt=2), path, "training", "steps")
    assert third.begin(kept=20) == 0, "in another attempt"
    assert [one["amount"] for one in losses(tmp_path)] == [11.0, 0.0]


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    path = tmp_path / "a.trail"
    one = Trail(context(tmp_path), path, "shard a", "rows")
    one.begin()
    one.tell(7)
    path.write_bytes(path.read_bytes()[:-4])
    assert Trail(context(tmp_path), path, "shard a", "rows").begin() == 1
    assert Trail(context(tmp_path), path, "shard a", "rows").begin() == 2
    assert [one["amount"] for one in losses(tmp_path)] == [0.0, 0.0]
