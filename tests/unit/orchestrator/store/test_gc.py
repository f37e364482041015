"""What `gc` removes and what it must keep, while other processes use the store."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import damage
import pytest
from store_contents import HOUR, age, collected, made, named_by_a_run

from ratchet.orchestrator import gc
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.finished_run import Nothing, run
from ratchet.orchestrator.job_interface import Job, Resources
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import Step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import Lease, Leases


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


def test_gc_removes_unnamed_results(store: Store) -> None:
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


def test_what_an_attempt_works_on_is_young_by_its_heartbeat(store: Store) -> None:
    assert isinstance(Leases(store, "run").acquire("busy"), Lease)
    age(store.root, 2 * HOUR)
    store.overwrite("steps/busy/attempts/1/heartbeat", {"count": 1}, durable=False)
    assert collected(store) == []
    age(store.root, 2 * HOUR)
    assert collected(store) == ["busy"]


def test_what_is_used_between_the_list_and_the_removal_stays(store: Store) -> None:
    commits = [made(store, step, step) for step in ("a", "b")]
    age(store.root, 2 * HOUR)
    garbage = gc.find_garbage(store, keep=5, grace=HOUR)
    assert len(garbage) == 4
    assert store.use("a") is not None
    made(store, "c", "b")  # the content of b, found in its object
    gc.remove_garbage(garbage)
    assert [step for step in ("a", "b", "c") if store.lookup(step)] == ["a", "c"]
    for commit in commits:
        store.path(commit.manifest, full=True)


@pytest.mark.slow
def test_a_run_computes_a_result_again_that_vanished(store: Store) -> None:
    step = Step(
        "a", Job("toy", config=Nothing, inputs=Nothing, run=run), Nothing(), {}, Resources()
    )
    step_id = Plan([step], store).steps["a"].step_id
    commit = made(store, step_id, "x")
    assert Plan([step], store).steps["a"].state == "done"
    store.local("objects", commit.manifest).rename(store.local("gone"))
    assert Plan([step], Store.view(store.root)).steps["a"].state == "to run"
    assert Plan([step], store).steps["a"].state == "to run"
    assert made(store, step_id, "x").attempt == commit.attempt + 2
    assert Plan([step], store).steps["a"].state == "done"


def test_a_withdrawn_result_is_replaced_where_it_is(store: Store) -> None:
    commit = made(store, "a", "x")
    damage.change(store.local("objects", commit.manifest) / "a.txt", "y")
    store.withdraw(commit)
    again = made(store, "a", "x")
    assert again.manifest == commit.manifest
    named_by_a_run(store, "a")
    age(store.root, 2 * HOUR)
    assert all(name.startswith(".aside-") for name in collected(store)), "only the damaged files go"
    store.path(again.manifest, full=True)


def test_killed_while_removing_the_next_collection_finishes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = made(store, "a", "x")
    age(store.root, 2 * HOUR)

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            collected(store)
    assert store.lookup("a") is None
    assert store.path(commit.manifest, full=True)
    assert len(collected(store)) == 2
    assert not list(store.local("steps").iterdir())
    assert not list(store.local("objects").iterdir())


def test_gc_keeps_trials(store: Store) -> None:
    for step in ("new", "old", "gone"):
        made(store, step, step)
    for sweep, step in (("20260102-toy", "new"), ("20260101-toy", "old")):
        trial = RunLog(store.local("sweeps", sweep, "trials", "abc", "seed-0"))
        trial.folder.mkdir(parents=True)
        RunLog(trial.folder.parents[2]).write("trials.json", {"trials": [{"settings": {}}]})
        trial.write("plan.json", {"recipe": "toy", "steps": [{"name": "a", "step_id": step}]})
        (trial.folder.parents[2] / "about.json").write_text("{}")
    age(store.local("steps"), 2 * HOUR)
    age(store.local("objects"), 2 * HOUR)
    collected(store, keep=1)
    assert [step for step in ("new", "old", "gone") if store.lookup(step)] == ["new"]


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


@pytest.mark.slow
def test_gc_lists_the_largest(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(60):
        made(store, f"step{number}", "x" * number)
    largest = made(store, "largest", "x" * 2_000_000).manifest
    age(store.root, 25 * HOUR)
    assert main(["gc", "--store", str(store.root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert largest[:16] in lines[0]
    assert "2.0 MB" in lines[0]
    assert lines[50] == "72 smaller ones are not shown"
    assert "122 things, 2.0 MB could be removed" in lines[-1]
    assert store.lookup("largest")
