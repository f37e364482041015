"""Where results are kept: by content, committed once, never half.

    objects/<manifest digest>/   an artifact's files and its MANIFEST.json; never changed
    steps/<step id>/epochs/<n>/  attempt n: its lease, and how it ended (see `lease`); the end of the newest attempt is
                                 the one truth about a step: if it says "commit", it points to the step's object
    begun/<step id>.<n>          attempt n may be under way: where to look for leases among a million steps
    steps/<step id>/attempts/    staging, one folder per attempt
    steps/<step id>/work/        finished shards and checkpoints, for the next attempt after a kill
    steps/<step id>/logs/        curves for TensorBoard
    steps/<step id>/state/       what a longer step of its kind goes on from (see `longer`)
    runs/<run id>/               plan, events, report
    sweeps/<sweep id>/           events, the trials' runs, report (see `sweep.ledger`)
    promoted/<name>              leads to the object of a step that was given a name

Small control objects are created exclusively (see `home`); files are plain files. A commit writes elsewhere, verifies,
syncs to disk, and becomes visible in one step. Where the store is a bucket (see `bucket`), its folder holds copies and
work in progress; epochs, objects and runs are in the bucket.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from obstore.exceptions import BaseError

from jobs.job import Result
from orchestrator.canonical import canonical_json
from orchestrator.errors import Damaged, StoreError
from orchestrator.failures import NO_ROOM
from orchestrator.store.bucket import Bucket
from orchestrator.store.home import Folder, Home, attempt_key, sync
from orchestrator.store.manifest import NAME, Manifest, Stamp


@dataclass(frozen=True)
class Commit:
    """A step's result. `identity`: the document whose digest is `step_id`; `record`: seconds, retries, versions."""

    step_id: str
    manifest: str
    attempt: int
    identity: Mapping[str, Any]
    record: Mapping[str, Any]


class Store:
    """A store below a folder, or in a bucket with a folder beside it. Safe to use from several threads, processes and
    machines that share the folder."""

    def __init__(self, root: Path, home: Home | None = None) -> None:
        self.root, self.home = root, home or Folder(root)
        self._verified: dict[Path, Stamp] = {}

    @classmethod
    def open(cls, prefix: str | Path) -> Store:
        """The store at a folder, created if it is not there, or at a URL of object storage (s3://, gs://, az://).

        Raises StoreError where the folder cannot be written, where the bucket does not answer, or where exclusive
        creation does not hold.
        """
        remote = "://" in str(prefix) and not str(prefix).startswith("file://")
        bucket = Bucket(str(prefix)) if remote else None
        root = bucket.cache() if bucket else Path(str(prefix).removeprefix("file://")).absolute()
        try:
            for folder in ("objects", "steps", "runs"):
                (root / folder).mkdir(parents=True, exist_ok=True)
            store = cls(root, bucket)
            store._check_exclusive()
        except ConnectionError:
            raise
        except OSError as error:
            raise StoreError(
                f"store {root}: {error.strerror or error}; expected a folder that can be written"
            ) from None
        return store

    @property
    def where(self) -> str:
        """The store as it was named: a folder or a URL."""
        return self.home.where

    def local(self, *parts: str) -> Path:
        """A path below the store's folder."""
        return self.root.joinpath(*parts)

    def create(self, key: str, value: Any) -> bool:
        """Creates a control object; False if it exists already. Safe (on disk, in the bucket) when this returns.

        In a bucket no two values may be alike: see `Bucket.create`."""
        return self.home.create(key, canonical_json(value))

    def overwrite(self, key: str, value: Any) -> None:
        """Replaces a control object, whole."""
        self.home.overwrite(key, canonical_json(value))

    def read(self, key: str) -> Any:
        """A control object, or None. Raises Damaged for what is not JSON."""
        text = self.home.read(key)
        if text is None:
            return None
        try:
            return json.loads(text)
        except ValueError:
            raise Damaged(
                f"{self.where}/{key}: {len(text)} bytes that are no JSON; expected a control object; remove it"
            ) from None

    def remove(self, key: str) -> None:
        """A control object that nobody needs; it may be gone, and may stay where the storage does not answer."""
        with suppress(OSError, BaseError):
            self.home.remove(key)

    def below(self, key: str) -> list[str]:
        """The names of the control objects right below a key."""
        return self.home.below(key)

    def newest(self, step_id: str) -> tuple[int, Mapping[str, Any] | None]:
        """The number of a step's newest attempt (0: there is none) and how it ended (None: it did not)."""
        epoch = self.home.attempts(step_id)
        return epoch, self.read(f"{attempt_key(step_id, epoch)}/end") if epoch else None

    def lookup(self, step_id: str) -> Commit | None:
        """The step's result, if there is one."""
        _, end = self.newest(step_id)
        return Commit(**end["commit"]) if end and "commit" in end else None

    def use(self, step_id: str) -> Commit | None:
        """The step's result, marked as used now: it, and what it points to, have `gc`'s whole grace period again."""
        _touch(self.root / "steps" / step_id)
        commit = self.lookup(step_id)
        if commit is not None:
            _touch(self.root / "objects" / commit.manifest)
        return commit

    def manifest(self, digest: str) -> Manifest:
        """The manifest at an address. Raises Damaged if it is missing or not what the address says."""
        path = self.root / "objects" / digest / NAME
        if not path.exists() and (text := self.home.manifest(digest)) is not None:
            path.parent.mkdir(exist_ok=True)
            fresh = path.with_name(f".{NAME}.{uuid.uuid4().hex[:8]}")
            fresh.write_bytes(text)
            fresh.replace(path)
        try:
            manifest = Manifest.from_bytes(path.read_bytes())
        except FileNotFoundError:
            raise Damaged(
                f"{path}: missing; a kept result was removed; `ratchet run ... --repair` computes it again"
            ) from None
        if manifest.digest != digest:
            raise Damaged(
                f"{path}: its content does not match its address; `ratchet run ... --repair` computes it again"
            )
        return manifest

    def path(self, digest: str, part: str | None = None, *, full: bool = False) -> Path:
        """The folder of an artifact, or of one part of it, verified: every file's size always, and every byte of
        files that this process has not read since they last changed if `full`.

        Raises Damaged, and StoreError if there is no such part.
        """
        self.verified(digest, part, full=full)
        folder = self.root / "objects" / digest
        return folder if part is None else folder / part

    def verified(self, digest: str, part: str | None = None, *, full: bool = False) -> Manifest:
        """The manifest at an address whose files are there: as `path`. From a bucket they are brought, once."""
        manifest, folder = self.manifest(digest), self.root / "objects" / digest
        with self.room(folder):
            self.home.bring(manifest, part, folder)
        manifest.verify(folder, part=part, full=full, known=self._verified)
        return manifest

    def staging(self, step_id: str, attempt: int) -> Path:
        """A fresh, empty folder for an attempt's output."""
        folder = self.root / "steps" / step_id / "attempts" / f"{attempt}-{uuid.uuid4().hex[:6]}"
        folder.mkdir(parents=True)
        return folder

    def work(self, step_id: str) -> Path:
        """The folder that a step's attempts share."""
        folder = self.root / "steps" / step_id / "work"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def logs(self, step_id: str) -> Path:
        """The folder for what viewers of training runs read; it stays as long as the step."""
        return self.root / "steps" / step_id / "logs"

    def place(self, staging: Path, result: Result) -> str:
        """Makes a staged folder an object, synced to disk; returns its address. No step points to it yet.

        Raises StoreError if the disk is full, and for what an artifact cannot hold.
        """
        with self.room(staging):
            canonical_json(result, "result")  # raises for NaN and for what is not plain data
            manifest = Manifest.build(staging, json.loads(json.dumps(asdict(result))))
            (staging / NAME).write_bytes(manifest.to_bytes())
            for folder, _, files in os.walk(staging):
                for name in files:
                    sync(Path(folder, name))
                sync(Path(folder))
            self._move(staging, manifest)
        self.home.keep(self.root / "objects" / manifest.digest, manifest)
        return manifest.digest

    def publish(self, folder: Path) -> None:
        """Puts what a folder of the store (a run's, say) holds now where others see it too."""
        self.home.publish(folder, folder.relative_to(self.root).as_posix())

    def pull(self, name: str) -> None:
        """Brings what others published below a name."""
        self.home.pull(name, self.root / name)

    def clear(self, step_id: str) -> None:
        """Removes what a finished step's attempts left."""
        for name in ("attempts", "work"):
            shutil.rmtree(self.root / "steps" / step_id / name, ignore_errors=True)

    def set_aside(self, step_id: str) -> None:
        """Withdraws a damaged result, so that its step is a miss. Nothing is deleted; `gc` does that.

        The withdrawal is one more attempt, which ends at once: numbers only grow, so no older attempt can commit.
        """
        epoch, end = self.newest(step_id)
        if end and "commit" in end and self.create(f"{attempt_key(step_id, epoch + 1)}/end", {"withdrawn": epoch}):
            damaged = self.root / "objects" / end["commit"]["manifest"]
            self.home.withdraw(damaged.name)
            if damaged.exists():
                damaged.rename(_aside(damaged))

    def _move(self, staging: Path, manifest: Manifest) -> None:
        """Moves a staged folder to its address, unless a sound copy is there."""
        target = self.root / "objects" / manifest.digest
        if target.exists():
            try:
                # Marked as used before it is read: `gc` cannot take it away between here and the commit.
                _touch(target)
                self.manifest(manifest.digest).verify(target, full=True)
                return
            except Damaged:
                if target.exists():
                    target.rename(_aside(target))
        try:
            staging.rename(target)
        except OSError as error:
            # Somebody placed the same bytes at this moment.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        sync(target.parent)

    @contextmanager
    def room(self, where: Path) -> Iterator[None]:
        """Names a full disk, as StoreError, that what is inside meets."""
        try:
            yield
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            free = shutil.disk_usage(self.root).free
            raise StoreError(
                f"{error.filename or where}: {error.strerror}, {free / 1e6:.0f} MB free; nothing was committed;"
                " make room (`ratchet gc` shows what can go) and give the same command again"
            ) from None

    def _check_exclusive(self) -> None:
        key = f"runs/.exclusive-{uuid.uuid4().hex[:8]}"
        if not self.create(key, 1) or self.create(key, 2):
            raise StoreError(f"store {self.where}: two creations of one object both succeeded; use another storage")
        self.remove(key)


def _touch(folder: Path) -> bool:
    """Sets a folder's modification time to now; False if there is none."""
    try:
        os.utime(folder)
    except FileNotFoundError:
        return False
    return True


def _aside(path: Path) -> Path:
    return path.with_name(f".aside-{uuid.uuid4().hex}")
