"""A power loss at any point of a collection, of a repair, and of the writing of checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from power_loss import Crash, record

from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface.digests import find_damage
from ratchet.orchestrator.store import Store

pytestmark = pytest.mark.slow

HEAD = """
import os, shutil, time
from pathlib import Path
from ratchet.orchestrator import gc
from ratchet.orchestrator.job_interface import Result, make_folder
from ratchet.orchestrator.job_interface.digests import hash_files, publish
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import Leases

OLD, KEPT = "a" * 64, "b" * 64

def commit(step_id):
    lease = leases.acquire(step_id)
    staging = store.staging(step_id, lease.attempt)
    (staging / "part").mkdir()
    (staging / "part" / "x.txt").write_text(step_id * 10)
    return lease.commit(staging, Result({"n": 1}), {"config": {}}, {"seconds": 1.0})
"""

COLLECT = (
    HEAD
    + """
store = Store.open(WATCHED)
with Leases(store, "run") as leases:
    commit(OLD)
    commit(KEPT)
run_log = RunLog.begin(store, "toy", {})
run_log.write("plan.json", {"recipe": "toy", "steps": [{"name": "kept", "step_id": KEPT, "object": None}]})
run_log.event("end", failures={}, interrupted=False)
for path in Path(WATCHED).rglob("*"):
    os.utime(path, (time.time() - 9000,) * 2, follow_symlinks=False)
mark("made")
gc.remove_garbage(gc.find_garbage(store, keep=1, grace=60))
mark("collected")
"""
)

REPAIR = (
    HEAD
    + """
store = Store.open(WATCHED)
with Leases(store, "run") as leases:
    made = commit(KEPT)
    mark("made")
    mark("damaging")
    file = Path(WATCHED, "objects", made.manifest, "part", "x.txt")
    os.chmod(file, 0o644)
    with open(file, "w") as opened:
        opened.write("damaged")
        opened.flush()
        os.fsync(opened.fileno())
    mark("damaged")
    store.withdraw(made)
    mark("withdrawn")
    commit(KEPT)
    mark("repaired")
"""
)

CHECKPOINTS = (
    HEAD
    + """
runs = Path(WATCHED, "train")
make_folder(runs)
for number in (1, 2, 3):
    fresh = runs / f"unfinished-{number}"
    (fresh / "engine").mkdir(parents=True)
    (fresh / "engine" / "states").write_text(f"weights {number}" * 50)
    (fresh / "history.json").write_text(str(number))
    publish(fresh, runs / f"step-{number}", hash_files(fresh))
    mark(str(number))
    if number > 2:
        shutil.rmtree(runs / f"step-{number - 2}")
        mark("removed")
"""
)


def list_crashes(program: str, tmp_path: Path) -> list[tuple[Crash, Path]]:
    """Return the states after a power loss, each with a folder that it is written to."""
    (tmp_path / "watched").mkdir()
    found = []
    for number, crash in enumerate(record(program, tmp_path / "watched", tmp_path)):
        root = tmp_path / str(number)
        crash.write_to(root)
        found.append((crash, root))
    return found


def test_a_collection_removes_no_result_by_halves(tmp_path: Path) -> None:
    crashes = list_crashes(COLLECT, tmp_path)
    assert {mark for crash, _ in crashes for mark in crash.marks} == {"made", "collected"}
    removed = 0
    for crash, root in crashes:
        if "made" not in crash.marks:
            continue
        for command in ("status", "verify", "gc"):
            assert main([command, "--store", str(root)]) == 0, command
        store = Store.open(root)
        kept = store.lookup("b" * 64)
        assert kept is not None
        store.path(kept.manifest, full=True)
        old = store.lookup("a" * 64)
        if old is not None:
            store.path(old.manifest, full=True)
        else:
            removed += 1
    assert removed


def test_a_repair_loses_no_result(tmp_path: Path) -> None:
    found = set()
    for crash, root in list_crashes(REPAIR, tmp_path):
        store = Store.open(root)
        commit = store.lookup("b" * 64)
        if crash.marks[-1:] in (("made",), ("repaired",)):
            assert commit is not None
        if crash.marks[-1:] == ("withdrawn",) and commit is not None:
            assert commit.attempt > 1, "what was withdrawn is back"
        if commit is None:
            continue
        found.add(commit.attempt)
        if commit.attempt > 1 or "damaging" not in crash.marks:
            store.path(commit.manifest, full=True)
    assert found == {1, 3}


def test_a_checkpoint_is_whole_or_does_not_count(tmp_path: Path) -> None:
    whole = set()
    for crash, root in list_crashes(CHECKPOINTS, tmp_path):
        intact = []
        for folder in sorted(root.glob("train/step-*")):
            if find_damage(folder):
                continue
            number = int(folder.name.partition("-")[2])
            assert (folder / "engine" / "states").read_text() == f"weights {number}" * 50
            intact.append(number)
        whole.add(tuple(intact))
        numbers = [int(mark) for mark in crash.marks if mark.isdecimal()]
        if numbers:
            assert max(intact, default=0) >= numbers[-1], "a checkpoint that counted is lost"
    assert whole >= {(), (1,), (1, 2), (2, 3)}
