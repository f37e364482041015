"""The audit log: who committed, withdrew, promoted and removed what, and when.

    log/<day>/<time>-<random>   one record; day and time in UTC

A record is a file of its own, since files in a bucket cannot be appended to. Records are never changed, and `gc` keeps
them; the folder of a day may be removed by hand. Records are for information only: a process that is killed right after
a commit leaves no record, and the commit is valid without it.
"""

from __future__ import annotations

import getpass
import os
import platform
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratchet.orchestrator.store import Commit, Store

READERS = 16
"""Number of concurrent reads, since object storage has a high latency."""


def record(store: Store, what: str, run: str = "", about: Commit | None = None, **details: Any) -> None:
    """Write a record. It is not synced to disk, and a failure to write it is ignored.

    what: commit, withdraw, promote or collect. run: the id of a run or sweep, or empty. about: the result whose step
    id, attempt and address are recorded. details: plain JSON values, such as `name` and `bytes`.
    """
    if about is not None:
        details |= {"step": about.step_id, "attempt": about.attempt, "object": about.manifest}
    now = datetime.now(UTC)
    key = f"log/{now:%Y-%m-%d}/{now:%H%M%S.%f}-{uuid.uuid4().hex[:8]}"
    who = {"host": platform.node(), "user": _find_user(), "run": run}
    with suppress(OSError):
        store.overwrite(key, {"at": now.timestamp(), "what": what, **who, **details}, durable=False)


def read_newest(store: Store, limit: int, run: str = "") -> list[dict[str, Any]]:
    """Return the newest `limit` records of the runs whose ids start with `run`, oldest first."""
    found = (value for value in _read_backwards(store) if value["run"].startswith(run))
    return list(islice(found, limit))[::-1]


def _read_backwards(store: Store) -> Iterator[dict[str, Any]]:
    with ThreadPoolExecutor(READERS) as pool:
        for day in sorted(store.list_names("log"), reverse=True):
            keys = [f"log/{day}/{name}" for name in reversed(store.list_names(f"log/{day}"))]
            for start in range(0, len(keys), READERS):
                yield from filter(None, pool.map(store.read_if_whole, keys[start : start + READERS]))


def _find_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return str(os.getuid())  # a container whose user has no name
