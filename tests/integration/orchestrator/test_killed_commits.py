"""A commit that is killed with kill -9 at every point, by real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from one_step import STEP, commit_once

from ratchet.orchestrator.store import Store

ROOT = Path(__file__).resolve().parents[3]

COMMIT = """
import os, signal, sys
from pathlib import Path
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.store.lease import Leases
from ratchet.orchestrator.store import Store

folder, points = Path(sys.argv[1]), int(sys.argv[2])
seen = 0
point = 0

def dying(function):
    # Dies before the call at an even point, right after it at an odd one.
    def call(*arguments, **keywords):
        global seen
        seen += 1
        if seen == point:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*arguments, **keywords)
        seen += 1
        if seen == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

def commit(root):
    store = Store.open(root)
    with Leases(store, "run") as leases:
        for name in ("fsync", "link", "mkdir", "rename", "replace", "unlink"):
            setattr(os, name, dying(getattr(os, name)))
        lease = leases.acquire("a" * 64)
        staging = store.staging(lease.step_id, lease.attempt)
        (staging / "part").mkdir()
        (staging / "part" / "x.txt").write_text("x" * 1000)
        (staging / "y.txt").write_text("y")
        lease.commit(staging, Result({"n": 1}), {"config": {}}, {"seconds": 1.0})

if not points:
    commit(folder / "whole")
    print(seen)
# A process per point; only the first one imports.
for point in range(1, points + 1):
    child = os.fork()
    if not child:
        commit(folder / str(point))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def commit_up_to(folder: Path, points: int) -> list[int]:
    """Return how the commits ended that were killed at the points from 1 on; for 0, the number of points."""
    command = [sys.executable, "-c", COMMIT, str(folder), str(points)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [int(line) for line in done.stdout.split()]


def under_way(root: Path) -> list[str]:
    """Return the steps of the attempts that have not ended."""
    leases = root.glob("steps/*/attempts/*/lease")
    return sorted(lease.parents[2].name for lease in leases if not (lease.parent / "end").exists())


def test_killed_commits(tmp_path: Path) -> None:
    (points,) = commit_up_to(tmp_path, 0)
    assert points > 30
    assert commit_up_to(tmp_path, points) == [-9] * points
    expected = Store.open(tmp_path / "whole").lookup(STEP)
    assert expected is not None
    for point in range(1, points + 1):
        root = tmp_path / str(point)
        store = Store.open(root)
        found = store.lookup(STEP)
        if found is not None:
            store.path(found.manifest, full=True)
        after = commit_once(store)
        assert under_way(root) == []
        assert after.manifest == expected.manifest
        store.path(after.manifest, full=True)
