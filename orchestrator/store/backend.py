"""Backends of a store: a folder, or a bucket (see `bucket`). `Store` works the same with both.

The file FORMAT in its root marks a folder, or a prefix of a bucket, as a store. It is created exclusively, before
anything else. A folder with other files and without this one is not a store: nothing is written or deleted in it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import DamagedError, StoreError
from ratchet.orchestrator import atomic_file
from ratchet.orchestrator.job_interface.digests import compute_sha256
from ratchet.orchestrator.store.manifest import NAME, File, Manifest, list_below, refuse_newer
from ratchet.orchestrator.version import VERSION

FORMAT = 1
"""Increased when an older Ratchet can no longer read or continue a store."""

FORMAT_NAME = "FORMAT"


def attempt_key(step_id: str, number: int) -> str:
    """Return the key of an attempt. Its lease, heartbeat and end are below it."""
    return f"steps/{step_id}/attempts/{number}"


@dataclass(frozen=True)
class Garbage:
    """Something that is no longer needed: a folder of the store or, if `remote`, a prefix of its bucket."""

    kind: str
    """`steps` or `objects`."""
    name: str
    """The step id or address."""
    why: str
    bytes: int
    inside: str = ""
    """The folder of a step, such as `work`; empty for the whole step."""
    remote: bool = False

    @property
    def key(self) -> str:
        return "/".join(filter(None, [self.kind, self.name, self.inside]))

    def __str__(self) -> str:
        place = "/".join(filter(None, [self.kind, self.name[:16], self.inside]))
        return f"{self.bytes / 1e6:10.1f} MB  {place}  {self.why}{', in the bucket' * self.remote}"


class Backend:
    """Small control objects by key, and the transfer of artifacts to and from the store's local folder. This one is a
    local or shared folder, which holds the artifacts already, so that its transfers do nothing. See `bucket.Bucket`."""

    where: str
    """The folder or URL as the user gave it."""
    downloads = False
    """Whether the local folder holds copies of artifacts, which are downloaded when a step or a command reads them."""

    def __init__(self, root: Path) -> None:
        self.root, self.where = root, str(root)

    def is_empty(self) -> bool:
        """Return whether nothing is stored, so that a store can be created here."""
        # A new disk has a folder `lost+found`. Another process may be creating the file FORMAT.
        names = os.listdir(self.root) if self.root.exists() else []
        return not [name for name in names if name != "lost+found" and not name.startswith(".FORMAT.")]

    def create(self, key: str, value: bytes) -> bool:
        """Create a control object, durably. Returns False if it exists already. All values must differ: see
        `Bucket.create`."""
        return atomic_file.create(self.root / key, value)

    def overwrite(self, key: str, value: bytes, *, durable: bool = True) -> None:
        """Create or replace a control object atomically. If not `durable`, a power loss may empty it."""
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
        """Return the names of what is directly below a key, sorted: control objects, not those of unfinished writes,
        and folders."""
        try:
            return sorted(name for name in os.listdir(f"{self.root}/{key}") if name[0] != ".")
        except FileNotFoundError:
            return []

    def manifest(self, digest: str) -> bytes | None:
        """Read the manifest of an object, or return None. Not that of a local copy."""
        return self.read(f"objects/{digest}/{NAME}")

    def list_sizes(self, digest: str) -> tuple[dict[str, int], list[str]]:
        """Return the files of an object, by relative path, with their bytes, and the folders. Not of a local copy."""
        folder = self.root / "objects" / digest
        files, folders = list_below(folder, folder)
        return {file: (folder / file).stat().st_size for file in files}, folders

    def hash_file(self, digest: str, file: File) -> str:
        """Return the sha256, hex, of the content of a file of an object. Not of a local copy."""
        return compute_sha256(self.root / "objects" / digest / file.path)

    def upload(self, folder: Path, manifest: Manifest) -> None:
        """Upload an object that is complete in the local folder."""

    def download(self, manifest: Manifest, part: str | None, folder: Path) -> None:
        """Download the files of an object, or of one folder of it, that are missing in `folder`."""

    def report_damage(self, digest: str, copy: Path) -> None:
        """Have the next upload of a damaged object replace all of its files. copy: its folder in the local folder."""

    def publish(self, folder: Path, key: str) -> None:
        """Make the current content of a folder visible to other machines."""

    def pull(self, key: str, folder: Path) -> None:
        """Download what other machines published below a key."""


def find_format(backend: Backend) -> bool:
    """Return whether there is a store. Raises StoreError if its format is newer than ours."""
    if (text := backend.read(FORMAT_NAME)) is None:
        return False
    try:
        document = json.loads(text)
        number, version = int(document["format"]), str(document["ratchet"])
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
