"""Backends of a store: a folder, or a bucket (see `bucket`). `Store` works the same with both."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import LocalStore

from ratchet.orchestrator.store.manifest import Manifest


def attempt_key(step_id: str, number: int) -> str:
    """Return the key of an attempt. Its lease, heartbeat and end are below it."""
    return f"steps/{step_id}/attempts/{number}"


@dataclass(frozen=True)
class Garbage:
    """Something that is no longer needed: a folder of the store or, if `remote`, a prefix of its bucket."""

    key: str
    why: str
    bytes: int
    remote: bool = False

    def __str__(self) -> str:
        kind, name, *inside = self.key.split("/")
        place = "/".join([kind, name[:16], *inside])
        return f"{self.bytes / 1e6:10.1f} MB  {place}  {self.why}{', in the bucket' * self.remote}"


class Backend(Protocol):
    """Small control objects by key, and the transfer of artifacts to and from the store's local folder."""

    where: str
    """The folder or URL as the user gave it."""

    def create(self, key: str, value: bytes) -> bool:
        """Create a control object, durably. Returns False if it exists already. All values must differ."""

    def overwrite(self, key: str, value: bytes) -> None:
        """Create or replace a control object atomically."""

    def read(self, key: str) -> bytes | None:
        """Return a control object, or None."""

    def remove(self, key: str) -> None:
        """Remove a control object."""

    def newest_attempt(self, step_id: str) -> int:
        """Return the number of a step's newest attempt; 0 if there is none."""

    def list_names(self, key: str) -> list[str]:
        """Return the names of the control objects directly below a key, sorted."""

    def upload(self, folder: Path, manifest: Manifest) -> None:
        """Upload an object that is complete in the local folder."""

    def manifest(self, digest: str) -> bytes | None:
        """Read the manifest of an object that is not in the local folder, or return None."""

    def download(self, manifest: Manifest, part: str | None, folder: Path) -> None:
        """Download the files of an object, or of one folder of it, that are missing in `folder`."""

    def withdraw(self, digest: str) -> None:
        """Remove a damaged object, so that it can be uploaded again."""

    def publish(self, folder: Path, key: str) -> None:
        """Make the current content of a folder visible to other machines."""

    def pull(self, key: str, folder: Path) -> None:
        """Download what other machines published below a key."""


class Folder:
    """A local or shared folder. Transfers do nothing, since the artifacts are in it already."""

    def __init__(self, root: Path) -> None:
        self.root, self.where = root, str(root)
        self._control = LocalStore(root)

    def create(self, key: str, value: bytes) -> bool:
        try:
            self._put(key, value, "create")
        except AlreadyExistsError:
            return False
        sync(self.root / key)
        sync((self.root / key).parent)
        return True

    def overwrite(self, key: str, value: bytes) -> None:
        self._put(key, value, "overwrite")

    def read(self, key: str) -> bytes | None:
        try:
            with open(f"{self.root}/{key}", "rb") as file:  # eight times as fast as obstore
                return file.read()
        except FileNotFoundError:
            return None

    def remove(self, key: str) -> None:
        obstore.delete(self._control, key)

    def newest_attempt(self, step_id: str) -> int:
        try:
            return max(map(int, os.listdir(self.root / "steps" / step_id / "attempts")), default=0)
        except FileNotFoundError:
            return 0

    def list_names(self, key: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / key))
        except FileNotFoundError:
            return []

    def upload(self, folder: Path, manifest: Manifest) -> None:
        pass

    def manifest(self, digest: str) -> bytes | None:
        return None

    def download(self, manifest: Manifest, part: str | None, folder: Path) -> None:
        pass

    def withdraw(self, digest: str) -> None:
        pass

    def publish(self, folder: Path, key: str) -> None:
        pass

    def pull(self, key: str, folder: Path) -> None:
        pass

    def _put(self, key: str, value: bytes, mode: Literal["create", "overwrite"]) -> None:
        try:
            obstore.put(self._control, key, value, mode=mode)
        except GenericError as error:
            # obstore gives the operating system's error, such as a full disk, only in its message.
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None:
                raise
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(self.root / key)) from error


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
