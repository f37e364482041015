"""What `gc` removes and what it must keep, while other processes use the store."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from uuid import UUID

import damage
import pytest
from store_contents import HOUR, age, collected, made, named_by_a_run

from ratchet.errors import DamagedError, LeaseLost
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store, gc
from ratchet.orchestrator.store import lease as lease_module
from ratchet.orchestrator.store.lease import Lease, Leases


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


def test_what_no_kept_run_names_goes_with_its_object_and_the_rest_stays(store: Store) -> None:
    commits = {step: made(store, step, step) for step in ("kept", "dropped")}
    named_by_a_run(store, "kept")
    age(store.root, 2 * HOUR)
    assert set(collected(store)) == {"dropped", commits["dropped"].manifest}
    assert store.lookup("dropped") is None
    assert not store.local("objects", commits["dropped"].manifest).exists()
    store.path(commits["kept"].manifest, full=True)
    assert collected(store) == []


def test_an_object_stays_as_long_as_one_step_points_to_it(store: Store) -> None:
    first, second = made(store, "kept", "same"), made(store, "dropped", "same")
    assert first.manifest == second.manifest
    named_by_a_run(store, "kept")
    age(store.root, 2 * HOUR)
    assert collected(store) == ["dropped"]
    store.path(first.manifest, full=True)


def test_what_is_young_or_was_used_lately_stays(store: Store) -> None:
    made(store, "used", "1")
    made(store, "old", "2")
    age(store.root, 2 * HOUR)
    made(store, "young", "3")
    assert store.use("used") is not None
    assert collected(store)[0] == "old"
    assert store.lookup("used")
    assert store.lookup("young")


def test_what_steps_point_to_is_read_only_where_an_object_may_go(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it for all steps is most of the time that a large store takes of which nothing can go."""
    read, find = list[str](), gc._find_address
    monkeypatch.setattr(gc, "_find_address", lambda store, step_id: (read.append(step_id), find(store, step_id))[1])
    made(store, "first", "1")
    made(store, "second", "1")
    named_by_a_run(store, "first")
    assert collected(store) == []
    assert read == []
    age(store.root, 2 * HOUR)
    assert collected(store) == ["second"], "the object is that of the first step too"
    assert {"first"} <= {*read} <= {"first", "second"}


def test_only_the_newest_runs_count_and_pinned_ones(store: Store) -> None:
    for step in ("pinned", "older", "newer"):
        made(store, step, step)
    named_by_a_run(store, "pinned", pinned=True)
    named_by_a_run(store, "older")
    time.sleep(1.1)  # run ids are ordered by the second
    named_by_a_run(store, "newer")
    age(store.root, 2 * HOUR)
    assert "older" in collected(store, keep=1)
    assert store.lookup("pinned")
    assert store.lookup("newer")
    assert not store.lookup("older")


def test_a_step_that_is_worked_on_stays(store: Store) -> None:
    with Leases(store, "run") as leases:
        lease = leases.acquire("busy")
        assert isinstance(lease, Lease)
        shard = store.work("busy") / "shard"
        shard.write_text("half")
        age(store.root, 2 * HOUR)
        assert collected(store) == []
        assert shard.exists()
    age(store.root, 2 * HOUR)
    assert collected(store) == ["busy"]


def test_the_work_of_a_driver_that_was_lost_on_another_machine_goes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lease_module, "_machine_id", lambda: "another")
        lease = Leases(store, "run").acquire("lost")
        assert isinstance(lease, Lease)
    (store.work("lost") / "shard").write_text("half")
    staging = store.staging("lost", 1)
    beat = f"steps/lost/attempts/{lease.attempt}/heartbeat"
    for seconds, gone in ((HOUR, []), (25 * HOUR, ["lost"])):
        store.overwrite(beat, {"count": 1, "at": time.time() - seconds})
        age(store.root, 2 * HOUR)
        assert collected(store) == gone
    staging.mkdir(parents=True)  # it was suspended, and its job writes the rest
    with pytest.raises(LeaseLost, match="removed by a garbage collection"):
        lease.commit(staging, Result({}), {}, {})
    assert isinstance(Leases(store, "new").acquire("lost"), Lease)


def test_what_attempts_left_behind_goes(store: Store) -> None:
    commit = made(store, "kept", "x")
    (store.work("kept") / "shard").write_text("x")
    (store.staging("kept", 9) / "half").write_text("x")
    named_by_a_run(store, "kept")
    age(store.root, 2 * HOUR)
    assert set(collected(store)) == {"staging", "work"}
    store.path(commit.manifest, full=True)


def test_what_is_used_between_the_list_and_the_removal_stays(store: Store) -> None:
    commits = [made(store, step, step) for step in ("a", "b")]
    age(store.root, 2 * HOUR)
    garbage = gc.plan(store, keep=5, grace=HOUR)
    assert len(garbage) == 4
    assert store.use("a") is not None
    made(store, "c", "b")  # the content of b, found in its object
    assert [Path(item.key).name for item in gc.sweep(store, garbage, keep=5, grace=HOUR)] == ["b"]
    for commit in commits:
        store.path(commit.manifest, full=True)


def test_a_withdrawn_result_is_replaced_where_it_is(store: Store) -> None:
    commit = made(store, "a", "x")
    damage.change(store.local("objects", commit.manifest) / "a.txt", "y")
    store.withdraw(commit)
    again = made(store, "a", "x")
    assert again.manifest == commit.manifest
    named_by_a_run(store, "a")
    age(store.root, 2 * HOUR)
    assert collected(store) == []
    store.path(again.manifest, full=True)


def test_killed_while_removing_the_next_collection_finishes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = made(store, "a", "x")
    age(store.root, 2 * HOUR)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            collected(store)
    assert store.lookup("a") is None
    with pytest.raises(DamagedError):
        store.manifest(commit.manifest)
    assert len(collected(store)) == 2
    assert not list(store.local("steps").iterdir())
    assert not list(store.local("objects").iterdir())


def test_the_trials_of_the_newest_sweeps_and_what_was_promoted_stay(store: Store) -> None:
    for step in ("new", "old", "named", "gone"):
        made(store, step, step)
    for seconds, sweep in ((1, "toy-new"), (2, "toy-old")):
        trial = RunLog(store.local("sweeps", sweep, "trials", "abc", "seed-0"))
        trial.folder.mkdir(parents=True)
        trial.write("plan.json", {"recipe": "toy", "steps": [{"name": "a", "step_id": sweep.removeprefix("toy-")}]})
        (trial.folder.parents[2] / "about.json").write_text("{}")
        age(trial.folder.parents[2], seconds * HOUR)
    store.local("promoted").mkdir()
    store.local("promoted", "best.json").write_text('{"step_id": "named"}')
    age(store.local("steps"), 2 * HOUR)
    age(store.local("objects"), 2 * HOUR)
    collected(store, keep=1)
    assert [step for step in ("new", "old", "named", "gone") if store.lookup(step)] == ["new", "named"]


@pytest.mark.slow
def test_collections_at_once_do_not_stumble_over_each_other(store: Store) -> None:
    commits = [made(store, f"step{number}", str(number)) for number in range(60)]
    keep = made(store, "kept", "kept")
    named_by_a_run(store, "kept")
    age(store.root, 2 * HOUR)
    with ThreadPoolExecutor(4) as pool:
        gone = [name for names in pool.map(lambda _: collected(store), range(4)) for name in names]
    assert {commit.manifest for commit in commits} <= set(gone)
    age(store.root, 2 * HOUR)
    collected(store)  # what one took from under another is half removed
    assert os.listdir(store.local("objects")) == [keep.manifest]
    assert os.listdir(store.local("steps")) == ["kept"]


def test_what_a_killed_collection_moved_away_is_called_half_removed(store: Store) -> None:
    commit = made(store, "dropped", "text")
    for path in (store.local("steps", "dropped"), store.local("objects", commit.manifest)):
        path.rename(path.with_name(f".gone-{path.name}"))
    age(store.root, 2 * HOUR)
    assert {item.why for item in gc.plan(store, keep=5, grace=HOUR)} == {"half removed"}
    assert len(collected(store)) == 2


def test_names_of_what_is_moved_away_do_not_meet(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """As 32 bits of a random number do among 100,000 things."""
    numbers = count()
    monkeypatch.setattr(gc.uuid, "uuid4", lambda: UUID(int=next(numbers)))
    for step in "abc":
        made(store, step, step)
    age(store.root, 2 * HOUR)
    assert len(collected(store)) == 6
    assert not os.listdir(store.local("steps"))


def test_of_much_that_can_go_the_largest_is_shown_and_how_much_there_is_of_a_kind(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(60):
        made(store, f"step{number}", "x" * number)
    largest = made(store, "largest", "x" * 2_000_000).manifest
    age(store.root, 2 * HOUR)
    assert main(["gc", "--store", str(store.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert largest[:16] in lines[0]
    assert "2.0 MB" in lines[0]
    assert lines[50] == "72 smaller ones are not shown"
    assert [line.split()[-2:] for line in lines if line.startswith("an object of no step")] == [["61", "2.0"]]
    assert "122 things, 2.0 MB could be removed" in lines[-1]
    assert store.lookup("largest")
