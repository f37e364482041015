"""Watching a run from elsewhere: the view of `ratchet status --follow`."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from ratchet.orchestrator.cli import follow
from ratchet.orchestrator.run_log import PROGRESS, RunLog
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.open_runs import OpenRun


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, RunLog]:
    """A run of four steps, one of which runs."""
    monkeypatch.setattr(follow, "INTERVAL", 0.01)
    store = Store.open(str(tmp_path / "store"))
    run_log = RunLog.begin(store, "toy", {})
    run_log.write(
        "plan.json",
        {"steps": [{"name": name, "step_id": "0" * 64} for name in ("a", "b", "c", "d")]},
    )
    run_log.event("hit", "a")
    run_log.event("started", "b", attempt=2)
    run_log.event("retry", "b", reason="lost\nmore", wait=2.0)
    run_log.event("started", "b", attempt=3)
    run_log.event("done", "b", seconds=75.0, metrics={"map@25": 0.5})
    run_log.event("waiting", "c", on="another run")
    run_log.event("started", "c", attempt=1)
    return store, run_log


@pytest.mark.parametrize(
    ("failures", "interrupted", "status"),
    [({}, False, 0), ({"c": "no colour"}, False, 1), ({}, True, 130)],
)
def test_a_run_is_shown_from_its_log_and_ends_with_its_status(
    run: tuple[Store, RunLog],
    failures: dict[str, str],
    interrupted: bool,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store, run_log = run
    for step, reason in failures.items():
        run_log.event("failed", step, reason=reason)
        run_log.event("skipped", "d", because=step)
    run_log.event("end", None, failures=failures, interrupted=interrupted)
    assert follow.follow_run(store, run_log) == status
    lines = [line[10:] for line in capsys.readouterr().out.splitlines()]
    assert lines[:6] == [
        f"run       toy {run_log.run_id}: 4 steps",
        "reused    a",
        "started   b  attempt 2",
        "retrying  b again in 2.0 s: lost",
        "started   b  attempt 3",
        "done      b  1 m 15 s  map@25 0.500",
    ]
    assert ("failed    c: no colour" in lines) == bool(failures)
    assert ("skipped   d: needs c" in lines) == bool(failures)


def test_a_run_is_shown_while_it_runs(
    run: tuple[Store, RunLog], capsys: pytest.CaptureFixture[str]
) -> None:
    store, run_log = run
    (run_log.folder / PROGRESS).write_text(
        json.dumps({"c": {"done": 5, "total": 20, "unit": "rows"}})
    )
    with OpenRun(store) as mark:
        mark.set_folder(run_log.folder)
        seen: list[int] = []
        watch = threading.Thread(target=lambda: seen.append(follow.follow_run(store, run_log)))
        watch.start()
        watch.join(0.5)
        assert watch.is_alive()
        run_log.event("done", "c", seconds=1.0, metrics={})
        run_log.event("done", "d", seconds=1.0, metrics={})
        run_log.event("end", None, failures={}, interrupted=False)
        watch.join(10)
    assert seen == [0]
    assert "finished  4/4 steps, 1 reused" in capsys.readouterr().out


def test_a_run_whose_driver_was_killed_is_said_to_be(
    run: tuple[Store, RunLog], capsys: pytest.CaptureFixture[str]
) -> None:
    store, run_log = run
    assert follow.follow_run(store, run_log) == 1
    assert f"run {run_log.run_id}: its driver is gone; give the command" in capsys.readouterr().out
