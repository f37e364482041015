"""Where a store's truth lies: below a folder, or in a bucket (see `bucket`). `Store` is the same over both."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, GenericError
from obstore.store import LocalStore

from orchestrator.store.manifest import Manifest


def attempt_key(step_id: str, number: int) -> str:
    """The key of a step's attempt, below which its lease, its heartbeat and its end are."""
    return f"steps/{step_id}/epochs/{number}"


@dataclass(frozen=True)
class Doomed:
    """What nothing needs any more: a folder of the store or, where `far`, a prefix of its bucket."""

    key: str
    why: str
    bytes: int
    far: bool = False

    def __str__(self) -> str:
        kind, name, *inside = self.key.split("/")
        place = "/".join([kind, name[:16], *inside])
        return f"{self.bytes / 1e6:10.1f} MB  {place}  {self.why}{', in the bucket' * self.far}"


class Home(Protocol):
    """Small control objects by key, and what it takes to have artifacts in the store's folder."""

    where: str
    """As it was named."""

    def create(self, key: str, value: bytes) -> bool:
        """Creates a control object; False if it exists already. Safe when this returns. No two values may be alike."""

    def overwrite(self, key: str, value: bytes) -> None:
        """Replaces a control object, whole."""

    def read(self, key: str) -> bytes | None:
        """A control object, or None."""

    def remove(self, key: str) -> None:
        """A control object that nobody reads any more."""

    def attempts(self, step_id: str) -> int:
        """The number of a step's newest attempt; 0 where there is none."""

    def below(self, key: str) -> list[str]:
        """The names of the control objects right below a key, sorted; none where there is nothing."""

    def keep(self, folder: Path, manifest: Manifest) -> None:
        """Keeps an object that lies whole in the store's folder."""

    def manifest(self, digest: str) -> bytes | None:
        """An object's manifest, where it is not in the store's folder; None where there is none."""

    def bring(self, manifest: Manifest, part: str | None, folder: Path) -> None:
        """Sees to it that the files of an object, or of one part of it, are in `folder`."""

    def withdraw(self, digest: str) -> None:
        """Removes an object that is not what its manifest says, so that it can be kept anew."""

    def publish(self, folder: Path, key: str) -> None:
        """Shows others what is below a folder of the store now."""

    def pull(self, key: str, folder: Path) -> None:
        """Brings what others published below a key."""


class Folder:
    """A folder, on a disk or shared. What lies in it is where it belongs: nothing is brought, kept or published."""

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
            with open(f"{self.root}/{key}", "rb") as file:  # an eighth of the time that obstore takes
                return file.read()
        except FileNotFoundError:
            return None

    def remove(self, key: str) -> None:
        obstore.delete(self._control, key)

    def attempts(self, step_id: str) -> int:
        try:
            return max(map(int, os.listdir(self.root / "steps" / step_id / "epochs")), default=0)
        except FileNotFoundError:
            return 0

    def below(self, key: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / key))
        except FileNotFoundError:
            return []

    def keep(self, folder: Path, manifest: Manifest) -> None:
        pass

    def manifest(self, digest: str) -> bytes | None:
        return None

    def bring(self, manifest: Manifest, part: str | None, folder: Path) -> None:
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
            # obstore tells the system's error (a full disk, say) in words only.
            number = re.search(r"\(os error (\d+)\)", str(error))
            if number is None:
                raise
            code = int(number[1])
            raise OSError(code, os.strerror(code), str(self.root / key)) from error


def sync(path: Path) -> None:
    """Has the system write a file, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
