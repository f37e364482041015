"""The store: results by content, committed once and never partially visible.

docs/architecture.md lists the folders of a store. Small control objects are created exclusively (see `backend`);
artifacts are plain files. A commit hashes the files of a staging folder, syncs them to disk, and becomes visible in one
operation. If the store is a bucket (see `bucket`), a local folder holds copies and work in progress; attempts, objects
and runs are in the bucket.
"""

import errno
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ratchet.errors import DamagedError, StoreError
from ratchet.orchestrator.atomic_file import (
    copy_foreign_links,
    make_folder,
    make_read_only,
    remove_empty_folders,
    remove_tree,
    replace,
    set_read_only,
    sync,
    sync_tree,
)
from ratchet.orchestrator.canonical_json import canonical_json
from ratchet.orchestrator.fingerprint import SCHEMA
from ratchet.orchestrator.job_interface.job import Result
from ratchet.orchestrator.store.backend import (
    FORMAT_NAME,
    Backend,
    attempt_key,
    create_format,
    find_format,
)
from ratchet.orchestrator.store.bucket import SCHEMES, Bucket
from ratchet.orchestrator.store.manifest import NAME, Manifest, Stamp, refuse_newer


@dataclass(frozen=True)
class Commit:
    """The committed result of a step."""

    step_id: str
    """The digest of the fingerprint."""
    manifest: str
    """The digest of the manifest: the address of the object."""
    attempt: int
    fingerprint: Mapping[str, Any]
    record: Mapping[str, Any]
    """Data about the attempt: name of the step, seconds, retries, library versions."""

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> "Commit":
        """Return the commit in the end of an attempt. A later version of Ratchet may have added fields. Raises
        DamagedError if one is missing."""
        try:
            return cls(**{own.name: stored[own.name] for own in fields(cls)})
        except (KeyError, TypeError) as error:
            raise DamagedError(
                f"commit of a step: {error} is missing; expected a whole commit; restore the store from a backup"
            ) from None


class Store:
    """A store in a folder, or in a bucket with a local folder. Threads, processes and machines may share it."""

    def __init__(self, prefix: str | Path, *, read_only: bool) -> None:
        """Use `open` or `view` instead: this reads nothing. Raises StoreError for empty paths and unsupported URLs."""
        scheme, colon, place = str(prefix).partition(":/")
        local = not colon or not scheme.isalnum() or scheme == "file"
        path = str(prefix).removeprefix("file://") if local else place.lstrip("/")
        if not path or (not local and (scheme not in SCHEMES or not place.startswith("/"))):
            raise StoreError(
                f"store {prefix or '(empty)'}: no folder or supported URL; expected a folder, s3://BUCKET/PREFIX,"
                " gs://BUCKET/PREFIX or az://ACCOUNT/CONTAINER/PREFIX; check --store and RATCHET_STORE"
            )
        self.backend = Backend(Path(path).absolute()) if local else Bucket(str(prefix))
        self.root = self.backend.root
        self.where = self.backend.where
        self.read_only = read_only
        self._verified: dict[Path, Stamp] = {}

    @classmethod
    def open(cls, prefix: str | Path, *, create: bool = True) -> "Store":
        """Open the store at a folder, or at a URL of object storage (s3://, gs://, az://), for writing.

        create: create the store if the folder or prefix is empty or missing, and check that it can be written. Without
        it nothing is written, so that `gc` works on a full disk. Raises StoreError if there is no store, if the folder
        holds other files, cannot be written, has a newer format, does not answer, or does not support exclusive
        creation.
        """
        if not create:
            store = cls.view(prefix)
            store.read_only = False
            return store
        store = cls(prefix, read_only=False)
        try:
            if not find_format(store.backend):
                create_format(store.backend)
            for folder in ("objects", "steps", "runs"):
                make_folder(store.local(folder))
            store._check_exclusive()
        except ConnectionError:
            raise
        except OSError as error:
            raise StoreError(
                f"store {store.root}: {error.strerror or error}; expected a folder that can be written"
            ) from None
        return store

    @classmethod
    def view(cls, prefix: str | Path, *, missing_ok: bool = False) -> "Store":
        """Open a store for reading. Nothing in it is changed.

        missing_ok: treat an empty or missing folder as a store without results. Raises StoreError as `open` does.
        """
        store = cls(prefix, read_only=True)
        try:
            if not find_format(store.backend) and not (missing_ok and store.backend.is_empty()):
                raise store._no_store()
        except NotADirectoryError:
            raise store._no_store() from None
        return store

    def _no_store(self) -> StoreError:
        return StoreError(
            f"store {self.where}: no store there; expected a folder or URL that `ratchet run` has created, with a file"
            f" {FORMAT_NAME}; check --store"
        )

    @property
    def places(self) -> list[Backend]:
        """The storages that hold steps and objects: the store itself and, for a bucket, the local copies."""
        if self.backend.downloads:
            return [self.backend, Backend(self.root)]
        return [self.backend]

    def local(self, *parts: str) -> Path:
        """Return a path in the store's local folder."""
        return self.root.joinpath(*parts)

    def create(self, key: str, value: Mapping[str, Any]) -> bool:
        """Create a control object. Returns False if it exists already. The object is durable when this returns."""
        assert not self.read_only
        # The nonce makes all values differ: if an answer is lost, `Bucket.create` recognizes its own value.
        return self.backend.create(key, canonical_json({**value, "nonce": uuid.uuid4().hex}))

    def overwrite(self, key: str, value: Any, *, durable: bool = True) -> None:
        """Create or replace a control object atomically. If not `durable`, it may be empty after a power loss."""
        assert not self.read_only
        self.backend.overwrite(key, canonical_json(value), durable=durable)

    def read(self, key: str) -> Any:
        """Return a control object, or None. Raises DamagedError if it is not JSON."""
        text = self.backend.read(key)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise DamagedError(
                f"{self.where}/{key}: {len(text)} bytes that are not JSON; expected a control object; remove it"
            ) from None

    def read_if_whole(self, key: str) -> Any:
        """Return a control object, or None if there is none or a power loss cut it off."""
        try:
            return self.read(key)
        except DamagedError:
            return None

    def remove(self, key: str) -> None:
        """Remove a control object if it exists. Nothing happens if the storage does not answer, or if this store is
        open for reading."""
        with suppress(OSError):
            if not self.read_only:
                self.backend.remove(key)

    def read_all(self, key: str) -> Iterator[tuple[str, Any]]:
        """Yield (name, content) of the control objects directly below a key, without those that were cut off."""
        for name in self.list_names(key):
            value = self.read_if_whole(f"{key}/{name}")
            if value is not None:
                yield name, value

    def list_names(self, key: str) -> list[str]:
        """Return the names of the control objects and folders directly below a key."""
        return self.backend.list_names(key)

    def newest(self, step_id: str) -> tuple[int, Mapping[str, Any] | None]:
        """Return the number of a step's newest attempt (0: none) and its `end` object (None: it has not ended)."""
        numbers = self.list_names(f"steps/{step_id}/attempts")
        attempt = max((int(number) for number in numbers if number.isdecimal()), default=0)
        return attempt, self.read(f"{attempt_key(step_id, attempt)}/end") if attempt else None

    def lookup(self, step_id: str) -> Commit | None:
        """Return the step's commit, or None."""
        _, end = self.newest(step_id)
        if not end or "commit" not in end:
            return None
        commit = Commit.read(end["commit"])
        refuse_newer(
            f"step {step_id[:12]}",
            "schema of a fingerprint",
            commit.fingerprint.get("schema"),
            SCHEMA,
        )
        return commit

    def use(self, step_id: str) -> Commit | None:
        """Return the step's commit, or None. Unless this store is open for reading, also restart the grace period of
        `gc` for the step and its object."""
        if self.read_only:
            return self.lookup(step_id)
        _touch(self.root / "steps" / step_id)
        commit = self.lookup(step_id)
        if commit is not None:
            self.keep_object(commit.manifest)
        return commit

    def keep_object(self, digest: str) -> None:
        """Restart the grace period of `gc` for an object."""
        _touch(self.root / "objects" / digest)

    def manifest(self, digest: str) -> Manifest:
        """Read the manifest at an address. Raises DamagedError if it is missing or does not match the address."""
        path = self.root / "objects" / digest / NAME
        if not path.exists() and (text := self.backend.manifest(digest)) is not None:
            replace(path, text)
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            found = None
        return Manifest.load(found, digest, str(path))

    def path(self, digest: str, part: str | None = None, *, full: bool = False) -> Path:
        """Verify an artifact, or one folder or file of it (`part`), and return its path.

        The size of every file is checked. If `full`, every file is also hashed, unless this process has hashed it
        before and it has not changed since. Raises DamagedError, and StoreError if there is no such part.
        """
        self.verified(digest, part, full=full)
        folder = self.root / "objects" / digest
        if part is None:
            return folder
        return folder / part

    def verified(self, digest: str, part: str | None = None, *, full: bool = False) -> Manifest:
        """Verify an artifact as `path` does and return its manifest. Files missing locally are downloaded first."""
        manifest = self.manifest(digest)
        folder = self.root / "objects" / digest
        self.backend.download(manifest, part, folder)
        manifest.verify(folder, part=part, full=full, known=self._verified)
        return manifest

    def staging(self, step_id: str, attempt: int) -> Path:
        """Create an empty folder for the output of an attempt, and remove the folders of earlier attempts, which have
        ended. Each is renamed first: a driver that still uses it finds its output complete or not at all."""
        parent = self.root / "steps" / step_id / "staging"
        folder = parent / f"{attempt}-{uuid.uuid4().hex[:6]}"
        folder.mkdir(parents=True)
        for left in parent.iterdir():
            number = left.name.partition("-")[0]
            if (
                not number.isdecimal() or int(number) < attempt
            ):  # not later ones, if this process was suspended
                gone = parent / f".gone-{uuid.uuid4().hex}"
                with suppress(OSError):  # another process removes it
                    left.rename(gone)
                    remove_tree(gone)
        return folder

    def work(self, step_id: str) -> Path:
        """Return the folder that the attempts of a step share, and create it if it is missing."""
        folder = self.root / "steps" / step_id / "work"
        make_folder(folder)
        return folder

    def add_object(self, staging: Path, result: Result) -> Manifest:
        """Turn a staging folder into an object, synced to disk, and return its manifest. No step points to it yet.

        Raises OSError if the disk is full, and StoreError for links and for file names that are not portable.
        """
        canonical_json(result, "result")  # raises for NaN and for what is not plain data
        remove_empty_folders(staging)
        copy_foreign_links(staging, staging.parents[1] / "work")
        manifest = Manifest.build(staging, json.loads(json.dumps(asdict(result))))
        # Metrics and columns keep the job's order, which the address ignores.
        text = json.dumps(manifest.document, ensure_ascii=False, indent=1)
        (staging / NAME).write_text(text, encoding="utf-8")
        make_read_only(staging)
        sync_tree(staging)
        self._place(staging, manifest)
        self.backend.upload(self.root / "objects" / manifest.digest, manifest)
        return manifest

    def place_source(self, path: Path, digest: str) -> Path:
        """Return the path of a user's file or folder that any machine can fetch. digest: of its content."""
        if not self.backend.downloads:
            return path
        name = digest[:32]
        place = self.local("sources", name, path.name)
        if place.is_symlink():  # to where this content was before
            place.unlink(missing_ok=True)
        if not place.exists():
            make_folder(place.parent)
            with suppress(FileExistsError):  # another thread is here too
                place.symlink_to(path)
        self.backend.send(path, place)
        self.backend.overwrite(f"sources/{name}/.used", b"")  # restarts the grace period of `gc`
        return place

    def clear(self, step_id: str) -> None:
        """Remove the staging and work folders of a finished step."""
        with suppress(OSError):
            remove_tree(self.local("steps", step_id, "staging"))
        with suppress(OSError):
            self.backend.discard(self.local("steps", step_id, "work"))

    def withdraw(self, commit: Commit) -> None:
        """Withdraw a damaged result, so that its step is a miss. The next attempt replaces the damaged files.

        The withdrawal is a new attempt that has ended: attempt numbers only grow, so no older attempt can commit. If
        another process has committed a newer result, that result stays.
        """
        if self.lookup(commit.step_id) != commit:
            return
        # Reported before the withdrawal, so that every later attempt sees the report. Nothing is removed: while this
        # process is suspended here, others may withdraw and replace the object.
        self.backend.report_damage(commit.manifest, self.root / "objects" / commit.manifest)
        self.create(
            f"{attempt_key(commit.step_id, commit.attempt + 1)}/end", {"withdrawn": commit.attempt}
        )

    def _place(self, staging: Path, manifest: Manifest) -> None:
        """Move a staging folder to its address. If the object exists, it stays, unless it is damaged."""
        target = self.root / "objects" / manifest.digest
        while True:
            try:
                staging.rename(target)
                set_read_only(
                    target
                )  # after the move, which needs the permission to write the folder
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            _touch(target)
            try:
                self.manifest(manifest.digest).verify(target, full=True)
                break
            except DamagedError:
                with suppress(FileNotFoundError):  # another process repairs it
                    target.rename(target.with_name(f".aside-{uuid.uuid4().hex}"))
        sync(target.parent)

    def _check_exclusive(self) -> None:
        key = f"runs/.exclusive-{uuid.uuid4().hex[:8]}"
        if not self.backend.create(key, b"1") or self.backend.create(key, b"2"):
            raise StoreError(
                f"store {self.where}: one object was created twice; expected exclusive creation; use another storage"
            )
        self.remove(key)


def _touch(folder: Path) -> None:
    """Set the modification time of a folder to now, if the folder exists and belongs to this user."""
    with suppress(FileNotFoundError, PermissionError):
        os.utime(folder)
