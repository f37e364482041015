"""What `gc` must keep, because running drivers, attempts and commits use it, and what it must ignore."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import ROOT
from store_contents import HOUR, age, collected, made, named_by_a_run

from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Commit, Store, gc
from ratchet.orchestrator.store.announcement import announce
from ratchet.orchestrator.store.lease import HeldByOther, Lease, Leases, list_lease_holders
from ratchet.orchestrator.store.open_runs import OpenRun, list_open_runs


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


def command(store: Store, *arguments: str) -> int:
    verb, *options = arguments
    return main([verb, "--store", str(store.root), *options])


def begun(store: Store, steps: dict[str, str | None]) -> RunLog:
    """A run without an end whose plan has these steps, with the addresses of the results that it found."""
    run_log = RunLog.begin(store, "toy", {})
    plan = [{"name": step_id, "step_id": step_id, "object": address} for step_id, address in steps.items()]
    run_log.write("plan.json", {"recipe": "toy", "steps": plan})
    return run_log


def newer_runs(store: Store, number: int) -> None:
    for _ in range(number):
        folder = named_by_a_run(store).folder
        folder.rename(folder.with_name(f"9{folder.name}"))


def test_five_newer_runs_do_not_take_the_inputs_of_a_running_step(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = made(store, "prepare", "rows")
    with OpenRun(store) as open_run:
        run_log = begun(store, {"prepare": commit.manifest, "train": None})
        open_run.set_folder(run_log.folder)
        newer_runs(store, 5)
        age(store.root, 2 * HOUR)
        assert command(store, "gc", "--yes") == 0
        assert store.lookup("prepare") == commit
        store.withdraw(commit)  # by another driver; this one has read the result
        age(store.root, 2 * HOUR)
        assert command(store, "gc", "--yes", "--grace-period", "0") == 0
        store.path(commit.manifest, full=True)
        assert command(store, "status") == 0
        assert "running" in capsys.readouterr().out
    age(store.root, 2 * HOUR)
    assert command(store, "gc", "--yes") == 0
    assert not store.local("objects", commit.manifest).exists()


def test_a_driver_that_makes_its_plan_keeps_everything(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    commit = made(store, "a", "x")
    with OpenRun(store):
        age(store.root, 2 * HOUR)
        assert command(store, "gc", "--yes") == 0
        assert "until it has a plan all steps are kept" in capsys.readouterr().out
        assert store.lookup("a") == commit


DRIVER = """
import sys, time
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.open_runs import OpenRun
with OpenRun(Store.open(sys.argv[1])):
    print("open", flush=True)
    time.sleep(100)
"""


def test_a_driver_that_was_killed_keeps_nothing(store: Store) -> None:
    made(store, "a", "x")
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(store.root)], cwd=ROOT, stdout=subprocess.PIPE)
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"open\n"
    age(store.root, 2 * HOUR)
    assert collected(store) == []
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    assert len(collected(store)) == 2
    assert list_open_runs(store) == []
    assert store.list_names("open_runs") == []


def test_runs_that_failed_do_not_count(store: Store) -> None:
    made(store, "good", "x")
    named_by_a_run(store, "good")
    time.sleep(1.1)  # run ids are ordered by the second
    for number in range(5):
        named_by_a_run(store, f"other{number}", failures={"a": "no connection"})
    age(store.root, 2 * HOUR)
    assert command(store, "gc", "--keep", "1", "--yes") == 0
    assert store.lookup("good")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--keep", "-1"), ("--keep", "two"), ("--keep", "1.5")]
    + [("--grace-period", value) for value in ("-1", "nan", "an hour")],
)
def test_numbers_that_make_no_sense_are_refused(
    store: Store, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made(store, "a", "x")
    age(store.root, 2 * HOUR)
    assert command(store, "gc", f"{option}={value}", "--yes") == 2
    assert f"gc {option} {value}: expected" in capsys.readouterr().err
    assert store.lookup("a")


def test_no_grace_period_still_keeps_what_was_just_made(store: Store) -> None:
    commit = made(store, "a", "x")
    assert command(store, "gc", "--grace-period", "0", "--keep", "0", "--yes") == 0
    assert store.lookup("a") == commit
    store.path(commit.manifest, full=True)


def commit_with_collection_before_end(store: Store, text: str) -> Commit:
    """Commit; collect everything after the object was placed, as if the driver had been suspended for hours."""
    lease = Leases(store, "run").acquire("a")
    assert isinstance(lease, Lease)
    staging = store.staging("a", lease.attempt)
    (staging / "a.txt").write_text(text)
    create = store.create

    def collect_first(key: str, value: dict[str, object]) -> bool:
        age(store.root, 2 * HOUR)
        collected(store, keep=0, grace=0)
        return create(key, value)

    store.create = collect_first  # type: ignore[method-assign, assignment]
    return lease.commit(staging, Result({}), {}, {})


def test_an_object_that_is_placed_but_not_committed_stays(store: Store) -> None:
    commit = commit_with_collection_before_end(store, "x")
    assert store.lookup("a") == commit
    store.path(commit.manifest, full=True)


def test_an_object_that_a_collection_is_removing_gets_another_address(store: Store) -> None:
    old = made(store, "old", "x")
    with announce(store, [old.manifest]):
        commit = made(store, "a", "x")
        shutil.rmtree(store.local("objects", old.manifest))  # the collection decided before the commit
    assert commit.manifest != old.manifest
    parts = store.manifest(commit.manifest).part_digest(None)
    store.path(commit.manifest, full=True)
    assert parts == store.manifest(made(store, "b", "x").manifest).part_digest(None), "children see no difference"


def test_who_loses_the_race_for_an_attempt_leaves_its_mark(store: Store) -> None:
    """The mark names the object that the winner is about to commit."""
    winner, loser = Leases(store, "winner"), Leases(store, "loser")
    newest = store.newest

    def suspended_after_it(step_id: str) -> object:
        found = newest(step_id)
        store.newest = newest  # type: ignore[method-assign]
        held = winner.acquire("a")
        assert isinstance(held, Lease)
        held._announce("address")
        return found

    store.newest = suspended_after_it  # type: ignore[method-assign, assignment]
    assert isinstance(loser.acquire("a"), HeldByOther)
    assert store.read("open_attempts/a.1") == {"object": "address"}


def test_a_step_that_is_used_and_made_again_while_it_is_looked_at_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = made(store, "a", "x")
    age(store.root, 2 * HOUR)
    garbage = gc.plan(store, keep=0, grace=HOUR)
    size_if_old = gc.measure_if_old

    def used_meanwhile(path: Path, before: float) -> int | None:
        if path.name.startswith(".gone-") and path.parent.name == "steps":
            os.utime(path)  # by a driver that opened the folder before it was renamed
            store.work("a")
        return size_if_old(path, before)

    monkeypatch.setattr(gc, "measure_if_old", used_meanwhile)
    assert gc.sweep(store, garbage, keep=0, grace=HOUR) == []
    assert store.lookup("a") == commit
    store.path(commit.manifest, full=True)


def test_what_does_not_parse_is_ignored(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """What a killed process and a power loss leave behind, at every place that `status` and `gc` read."""
    kept, dropped = made(store, "kept", "kept"), made(store, "dropped", "dropped")
    run_log = named_by_a_run(store, "kept")
    held = Leases(store, "run").acquire("busy")
    assert isinstance(held, Lease)
    for key in (
        "open_attempts/busy.1#1",
        "open_attempts/busy.x",
        "open_attempts/.busy.2",
        "open_attempts/noattempt",
        "open_attempts/torn.1",
        "open_runs/torn",
        "collections/torn",
        "collections/torn#1",
        "steps/kept/attempts/1#1/lease",
        "steps/torn/attempts/1/lease",
        "steps/ended/attempts/1/end",
        "runs/file",
    ):
        path = store.local(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"cut off')
    (run_log.folder / "events.jsonl").open("ab").write(b"\xff\n{")
    age(store.root, 2 * HOUR)
    for arguments in (("status",), ("status", run_log.run_id), ("gc", "--yes")):
        assert command(store, *arguments) == 0, arguments
    assert "step busy is held by" in capsys.readouterr().out
    assert store.lookup("kept") == kept
    assert not store.local("objects", dropped.manifest).exists()
    assert [step for step, _ in list_lease_holders(store)] == ["busy"]


def test_a_plan_that_cannot_be_read_keeps_all_steps_and_is_named(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    made(store, "a", "x")
    run_log = named_by_a_run(store, "a")
    (run_log.folder / "plan.json").write_text('{"steps": [')
    age(store.root, 2 * HOUR)
    assert command(store, "gc", "--yes") == 0
    assert f"{run_log.folder}: its plan cannot be read" in capsys.readouterr().out.replace("\n", "")
    assert store.lookup("a")
    assert command(store, "status") == 0
    assert "damaged" in capsys.readouterr().out


def test_a_lease_that_a_power_loss_cut_off_is_taken_over(store: Store) -> None:
    held = Leases(store, "run").acquire("a")
    assert isinstance(held, Lease)
    store.local("steps", "a", "attempts", "1", "lease").write_bytes(b"")
    assert made(store, "a", "x").attempt == 2
