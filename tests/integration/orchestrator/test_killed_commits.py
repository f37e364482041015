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

point, root = int(sys.argv[1]), sys.argv[2]
seen = 0

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
print(seen)
"""


def attempt(root: Path, point: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMIT, str(point), str(root)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def under_way(root: Path) -> list[str]:
    """Return the steps of the attempts that have not ended."""
    leases = root.glob("steps/*/attempts/*/lease")
    return sorted(lease.parents[2].name for lease in leases if not (lease.parent / "end").exists())


def test_killed_commits(tmp_path: Path) -> None:
    whole = attempt(tmp_path / "whole", 10**9)
    assert whole.returncode == 0, whole.stderr
    points = int(whole.stdout)
    assert points > 30
    expected = Store.open(tmp_path / "whole").lookup(STEP)
    assert expected is not None
    for point in range(1, points + 1):
        root = tmp_path / str(point)
        died = attempt(root, point)
        assert died.returncode == -9, (point, died.stderr)
        store = Store.open(root)
        found = store.lookup(STEP)
        if found is not None:
            store.path(found.manifest, full=True)
        after = commit_once(store)
        assert under_way(root) == []
        assert after.manifest == expected.manifest
        store.path(after.manifest, full=True)
