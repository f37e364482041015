"""Backends of a store: a folder, or a bucket (see `bucket`). `Store` works the same with both.

The file FORMAT in a folder, or below a prefix of a bucket, marks a store. It is created exclusively, before all other
files. A folder that has other files but no FORMAT is not a store: nothing is written or deleted in it.
"""

import json
import math
import os
import uuid
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path

from ratchet.errors import DamagedError, StoreError
from ratchet.orchestrator import atomic_file
from ratchet.orchestrator.atomic_file import check_removable, remove_tree
from ratchet.orchestrator.job_interface.digests import compute_sha256
from ratchet.orchestrator.job_interface.shared_files import SharedFiles
from ratchet.orchestrator.store.manifest import NAME, File, Manifest, list_below, refuse_newer
from ratchet.orchestrator.version import VERSION

FORMAT = 1
"""Version of the store's format; increased when older versions of Ratchet can no longer read or extend a store."""

FORMAT_NAME = "FORMAT"


def attempt_key(step_id: str, number: int) -> str:
    """Return the key of an attempt. Its lease, heartbeat and end are below it."""
    return f"steps/{step_id}/attempts/{number}"


class Backend(SharedFiles):
    """Storage of small control objects by key, and transfer of artifacts to and from the store's local folder. This
    class is for a local or shared folder; its transfers do nothing. See `bucket.Bucket` for object storage."""

    where: str
    """The folder or URL as the user gave it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)

    def is_empty(self) -> bool:
        """Return whether nothing is stored, so that a store can be created here."""
        # Ignored: the folder `lost+found` of a new disk, and the temporary file of a process that creates FORMAT.
        names = os.listdir(self.root) if self.root.exists() else []
        return not [
            name for name in names if name != "lost+found" and not name.startswith(".FORMAT.")
        ]

    def create(self, key: str, value: bytes) -> bool:
        """Create a control object durably. Returns False if it exists already. No two values may be equal; see
        `Bucket.create`."""
        return atomic_file.create(self.root / key, value)

    def overwrite(self, key: str, value: bytes, *, durable: bool = True) -> None:
        """Create or replace a control object atomically. If not `durable`, it may be empty after a power loss."""
        atomic_file.replace(self.root / key, value, durable=durable)

    def read(self, key: str) -> bytes | None:
        """Return a control object, or None."""
        try:
            with open(f"{self.root}/{key}", "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def remove(self, key: str) -> None:
        """Remove a control object."""
        os.unlink(self.root / key)

    def list_names(self, key: str) -> list[str]:
        """Return the sorted names of the control objects and folders directly below a key, without those of unfinished
        writes."""
        try:
            return sorted(name for name in os.listdir(f"{self.root}/{key}") if name[0] != ".")
        except FileNotFoundError:
            return []

    def has_object(self, digest: str) -> bool:
        """Return whether an object, damaged or not, is in the storage itself."""
        return (self.root / "objects" / digest).is_dir()

    def manifest(self, digest: str) -> bytes | None:
        """Return the manifest of an object in the storage itself (not of a local copy), or None."""
        return self.read(f"objects/{digest}/{NAME}")

    def list_sizes(self, digest: str) -> tuple[dict[str, int], list[str]]:
        """Return relative path -> bytes of an object's files in the storage itself, and its folders."""
        folder = self.root / "objects" / digest
        return list_below(folder, folder)

    def hash_file(self, digest: str, file: File) -> str:
        """Return the SHA-256 (hex) of a file of an object in the storage itself, not of a local copy."""
        return compute_sha256(self.root / "objects" / digest / file.path)

    def list_entries(self, kind: str, skip: Container[str]) -> Iterator[tuple[str, int, float]]:
        """Yield (name, bytes, time of the newest change) of the steps or the objects that are not in `skip`. kind:
        `steps` or `objects`."""
        with suppress(FileNotFoundError):
            for name in os.listdir(self.root / kind):
                if name not in skip:
                    with suppress(PermissionError):  # only its owner can list it
                        yield name, *measure(self.root / kind / name)

    def remove_entry(self, kind: str, name: str, before: float) -> bool:
        """Remove a step or an object; return False if it was changed at or after `before`, or is gone. Raises
        PermissionError, and removes nothing, if only another user can remove it."""
        folder = self.root / kind / name
        gone = folder.with_name(f".gone-{uuid.uuid4().hex}")
        if measure(folder)[1] >= before:
            return False
        check_removable(folder)
        with suppress(FileNotFoundError):  # another process removes it
            # Hides it from all processes at once, so that none reads a half-removed folder.
            folder.rename(gone)
            if measure(gone)[1] < before:
                remove_tree(gone)
                return True
            # It was used meanwhile. If it has been replaced, `gc` removes it later.
            with suppress(OSError):
                gone.rename(folder)
        return False

    def upload(self, folder: Path, manifest: Manifest) -> None:
        """Upload an object that is complete in the local folder."""

    def download(self, manifest: Manifest, part: str | None, folder: Path) -> None:
        """Download the files of an object, or of one folder of it, that are missing in `folder`."""

    def report_damage(self, digest: str, copy: Path) -> None:
        """Make the next upload of a damaged object replace all of its files. copy: the local copy of the object."""


def find_format(backend: Backend) -> bool:
    """Return whether there is a store. Raises StoreError if its format is newer than this Ratchet's."""
    text = backend.read(FORMAT_NAME)
    if text is None:
        return False
    try:
        document = json.loads(text)
        number = int(document["format"])
        version = str(document["ratchet"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DamagedError(
            f"{backend.where}/{FORMAT_NAME}: {len(text)} bytes that are not a store's format; expected"
            f' {{"format": NUMBER, "ratchet": "VERSION"}}; restore the file from a backup'
        ) from None
    refuse_newer(f"store {backend.where}", "format", number, FORMAT, f" of Ratchet {version}")
    return True


def create_format(backend: Backend) -> None:
    """Mark an empty or missing folder as a store. Raises StoreError if it holds something else."""
    if not backend.is_empty():
        raise StoreError(
            f"store {backend.where}: a folder with other files and without a file {FORMAT_NAME}; expected a store, or"
            " an empty or missing folder; nothing was changed; check --store"
        )
    backend.create(FORMAT_NAME, json.dumps({"format": FORMAT, "ratchet": VERSION}).encode())
    find_format(backend)  # another process may have created it


def measure(path: Path) -> tuple[int, float]:
    """Return the total bytes of a folder, and the time of the newest change in it; infinity if it is removed
    meanwhile."""
    size = 0
    try:
        newest = path.stat().st_mtime
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    more, changed = measure(Path(entry.path))
                else:
                    stat = entry.stat(follow_symlinks=False)
                    more, changed = stat.st_size, stat.st_mtime
                size += more
                newest = max(newest, changed)
    except FileNotFoundError:
        return 0, math.inf
    return size, newest
