"""What `gc` must keep, because running drivers, attempts and commits use it, and what it must ignore."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import ROOT
from store_contents import HOUR, age, collected, made, named_by_a_run

from ratchet.orchestrator import gc
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store, lease
from ratchet.orchestrator.store.lease import HeldByOther, Lease, Leases, OpenRun, list_open_runs


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


def command(store: Store, *arguments: str) -> int:
    verb, *options = arguments
    return main([verb, "--store", str(store.root), *options])


def begun(store: Store, steps: dict[str, str | None]) -> RunLog:
    """A run without an end whose plan has these steps, with the addresses of the results that it found."""
    run_log = RunLog.begin(store, "toy", {})
    plan = [
        {"name": step_id, "step_id": step_id, "object": address}
        for step_id, address in steps.items()
    ]
    run_log.write("plan.json", {"recipe": "toy", "steps": plan})
    return run_log


def newer_runs(store: Store, number: int) -> None:
    for _ in range(number):
        folder = named_by_a_run(store).folder
        folder.rename(folder.with_name(f"9{folder.name}"))


def test_gc_keeps_inputs_of_a_running_step(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = made(store, "prepare", "rows")
    with OpenRun(store) as open_run:
        run_log = begun(store, {"prepare": commit.manifest, "train": None})
        open_run.set_folder(run_log.folder)
        newer_runs(store, 5)
        age(store.root, 25 * HOUR)
        assert command(store, "gc", "--yes") == 0
        assert store.lookup("prepare") == commit
        store.withdraw(commit)  # by another driver; this one has read the result
        age(store.root, 25 * HOUR)
        assert command(store, "gc", "--yes", "--grace-period", "0") == 0
        store.path(commit.manifest, full=True)
        assert command(store, "status") == 0
        assert "running" in capsys.readouterr().out
    age(store.root, 25 * HOUR)
    assert command(store, "gc", "--yes") == 0
    assert not store.local("objects", commit.manifest).exists()


@pytest.mark.parametrize("ahead", [-50.0, 50.0])
def test_clocks_of_two_machines_may_differ_by_less_than_the_grace_period(
    store: Store, ahead: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine, whose clock is wrong, collects and waits for leases."""
    young, old = made(store, "young", "rows"), made(store, "old", "others")
    for kind, name in (("steps", "old"), ("objects", old.manifest)):
        age(store.root / kind / name, 2 * HOUR)
    with Leases(store, "run", ttl=600) as leases, OpenRun(store) as open_run:
        open_run.set_folder(begun(store, {"running": None}).folder)
        held = leases.acquire("running")
        assert isinstance(held, Lease)
        other = SimpleNamespace(**vars(time) | {"time": lambda: time.time() + ahead})
        for name, value in (("time", other), ("_machine_id", lambda: "another machine")):
            monkeypatch.setattr(lease, name, value)
        monkeypatch.setattr(gc, "time", other)
        assert isinstance(Leases(store, "second", ttl=600).acquire("running"), HeldByOther)
        assert len(list_open_runs(store)) == 1
        assert set(collected(store, keep=0, grace=60)) == {"old", old.manifest}
        assert store.lookup("young") == young
        monkeypatch.undo()
        made_meanwhile = store.staging("running", held.attempt)
        (made_meanwhile / "text.txt").write_text("result")
        assert held.commit(made_meanwhile, Result({}), {}, {"seconds": 1.0}).attempt == 1


def test_a_driver_that_makes_its_plan_keeps_everything(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = made(store, "a", "x")
    with OpenRun(store):
        age(store.root, 25 * HOUR)
        assert command(store, "gc", "--yes") == 0
        assert "until it has a plan, nothing is removed" in capsys.readouterr().out
        assert store.lookup("a") == commit


DRIVER = """
import sys, time
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import OpenRun
with OpenRun(Store.open(sys.argv[1])):
    print("open", flush=True)
    time.sleep(100)
"""


@pytest.mark.slow
def test_a_driver_that_was_killed_keeps_nothing(store: Store) -> None:
    made(store, "a", "x")
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(store.root)], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"open\n"
    age(store.root, 25 * HOUR)
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
    age(store.root, 25 * HOUR)
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
    age(store.root, 25 * HOUR)
    assert command(store, "gc", f"{option}={value}", "--yes") == 2
    assert f"gc {option}: {value}: expected" in capsys.readouterr().err
    assert store.lookup("a")


def test_no_grace_period_still_keeps_what_was_just_made(store: Store) -> None:
    commit = made(store, "a", "x")
    assert command(store, "gc", "--grace-period", "0", "--keep", "0", "--yes") == 0
    assert store.lookup("a") == commit
    store.path(commit.manifest, full=True)


def test_what_does_not_parse_is_ignored(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """What a killed process and a power loss leave behind, at every place that `status` and `gc` read."""
    kept, dropped = made(store, "kept", "kept"), made(store, "dropped", "dropped")
    run_log = named_by_a_run(store, "kept")
    for key in (
        "open_runs/torn",
        "steps/kept/attempts/1#1/lease",
        "steps/torn/attempts/1/lease",
        "steps/ended/attempts/1/end",
        "runs/file",
    ):
        path = store.local(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"cut off')
    (run_log.folder / "events.jsonl").open("ab").write(b"\xff\n{")
    age(store.root, 25 * HOUR)
    for arguments in (("status",), ("status", run_log.run_id), ("gc", "--yes")):
        assert command(store, *arguments) == 0, arguments
    assert store.lookup("kept") == kept
    assert not store.local("objects", dropped.manifest).exists()


def test_unreadable_plan_keeps_all_steps(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    made(store, "a", "x")
    run_log = named_by_a_run(store, "a")
    (run_log.folder / "plan.json").write_text('{"steps": [')
    age(store.root, 25 * HOUR)
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
