"""The format of a store. The file FORMAT in its root marks a folder, or a prefix of a bucket, as a store.

It is created exclusively, before anything else. A folder with other files and without this one is not a store: nothing
is written or deleted in it.
"""

from __future__ import annotations

import json

from ratchet.errors import DamagedError, StoreError
from ratchet.orchestrator.store.backend import Backend
from ratchet.orchestrator.store.manifest import refuse_newer
from ratchet.orchestrator.version import VERSION

FORMAT = 1
"""Increased when an older Ratchet can no longer read or continue a store."""

NAME = "FORMAT"


def find_format(backend: Backend) -> bool:
    """Return whether there is a store. Raises StoreError if its format is newer than ours."""
    text = backend.read(NAME)
    if text is None:
        return False
    try:
        document = json.loads(text)
        number, version = int(document["format"]), str(document["ratchet"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedError(
            f"{backend.where}/{NAME}: {len(text)} bytes that are not a store's format; expected"
            f' {{"format": NUMBER, "ratchet": "VERSION"}}; restore the file from a backup'
        ) from None
    refuse_newer(f"store {backend.where}", "format", number, FORMAT, f" of Ratchet {version}")
    return True


def create_format(backend: Backend) -> None:
    """Mark an empty or missing folder as a store. Raises StoreError if it holds something else."""
    if not backend.is_empty():
        raise StoreError(
            f"store {backend.where}: a folder with other files and without a file {NAME}; expected a store, or an"
            " empty or missing folder; nothing was changed; check --store"
        )
    backend.create(NAME, json.dumps({"format": FORMAT, "ratchet": VERSION}).encode())
    find_format(backend)  # another process may have created it
