"""One step that is committed by real processes."""

from __future__ import annotations

from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.store import Commit, Store
from ratchet.orchestrator.store.lease import Lease, Leases

STEP = "a" * 64


def commit_once(store: Store, run: str = "again", text: str = "y") -> Commit:
    with Leases(store, run) as leases:
        lease = leases.acquire(STEP)
        if isinstance(lease, Commit):
            assert store.lookup(STEP) == lease
            return lease
        assert isinstance(lease, Lease)
        staging = store.staging(STEP, lease.attempt)
        (staging / "part").mkdir()
        (staging / "part" / "x.txt").write_text("x" * 1000)
        (staging / "y.txt").write_text(text)
        return lease.commit(staging, Result({"n": 1}), {"config": {}}, {"seconds": 1.0})
