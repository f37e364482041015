"""Announcements: which objects a garbage collection is about to remove.

    collections/<random>   addresses of these objects; it exists from before the last check of their use until removal

A collection announces objects, then checks that no step and no attempt names them. A commit names its object in the
mark of its attempt (see `lease`), then looks for announcements. In any order, and however long a process is suspended
between two lines, one of the two sees the other: the collection keeps the object, or the commit takes another address.
A collection that was killed leaves its announcement behind; it is removed a week later.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.orchestrator.store import Store

LEFT_OVER = 7 * 86_400.0
"""Age in seconds after which an announcement counts as left over by a killed collection, and is removed."""


@contextmanager
def announce(store: Store, digests: Sequence[str]) -> Iterator[None]:
    """Announce objects while the block removes them. The announcement stays after an error: requests may be pending."""
    for name, value in store.read_all("collections"):
        if time.time() - value["at"] > LEFT_OVER:
            store.remove(f"collections/{name}")
    key = f"collections/{uuid.uuid4().hex}"
    store.overwrite(key, {"at": time.time(), "objects": list(digests)})
    yield
    store.remove(key)


def is_announced(store: Store, digest: str) -> bool:
    """Return whether a collection may be removing an object. Announcements that a power loss cut off do not count."""
    return any(digest in value["objects"] for _, value in store.read_all("collections"))
