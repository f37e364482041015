"""Object storage as a store's home: S3, Google Cloud Storage and Azure, by their URLs.

The bucket holds what is kept, laid out as in a folder (see `store`). Beside it stands a folder with copies of what was
needed, which may be removed at any time, and with work in progress. Of an object the manifest is uploaded last and
looked at first, so that what can be found is whole; what comes back is compared with the manifest's sums.

Credentials and endpoints are the libraries' usual variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_REGION,
GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME, ...) or the machine's role; none of them is ever written down.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from orchestrator.errors import Damaged, StoreError, Unreachable
from orchestrator.store.manifest import NAME, File, Manifest

AT_ONCE = 8
"""Files that are on their way at a time."""

PIECE = 16 << 20
"""Bytes of a large file that travel in one request: a connection that breaks costs so much."""

TRIES = 5
"""To create what may or may not have been created."""

PATIENCE: Any = {
    "client": {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)},
    "retry": {"max_retries": 10, "retry_timeout": timedelta(seconds=180)},
}
"""With one request, and with all tries of it together."""


class Bucket:
    """A prefix in object storage. Safe to use from several threads."""

    def __init__(self, url: str) -> None:
        """Raises StoreError for a URL of no kind that is known. Nothing is asked of the network yet."""
        if (parts := urlsplit(url)).query or parts.password:
            raise StoreError(
                f"store {parts.scheme}://{parts.hostname}{parts.path}: a key or token given in the URL; expected none,"
                " since URLs stand in plans and reports; set the library's variables, or give the machine a role"
            )
        self.where = url.rstrip("/")
        # Who names an address without TLS (a server of their own) means it.
        plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
        client: Any = {**PATIENCE["client"], "allow_http": plain}
        try:
            self.control = from_url(self.where, client_options=client, retry_config=PATIENCE["retry"])
        except (BaseError, ValueError) as error:
            raise StoreError(
                f"store {url}: {_first_line(error)}; expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or"
                " az://ACCOUNT/CONTAINER/PREFIX; correct it, or give a folder"
            ) from None
        self._published: dict[Path, tuple[int, int]] = {}

    def cache(self) -> Path:
        """Where this bucket's copies and work lie: below RATCHET_CACHE, which all machines of a cluster share."""
        cache = os.environ.get("RATCHET_CACHE") or Path.home() / ".cache" / "ratchet"
        return Path(cache, hashlib.sha256(self.where.encode()).hexdigest()[:16]).absolute()

    def create(self, key: str, value: bytes) -> bool:
        """Creates a small object; False if it exists already. No two values may be alike: an answer can be lost on the
        way, and what is there then is ours if it says what we said."""
        for tries in range(TRIES):
            try:
                with self.reached(key):
                    obstore.put(self.control, key, value, mode="create")
                return True
            except AlreadyExistsError:
                with self.reached(key, reading=True), suppress(FileNotFoundError):
                    return bytes(obstore.get(self.control, key).bytes()) == value
                return False
            except Unreachable:
                # Not tried again by the library: it may have come through.
                if tries + 1 == TRIES:
                    raise
        return False

    def overwrite(self, key: str, value: bytes) -> None:
        with self.reached(key):
            obstore.put(self.control, key, value)

    def read(self, key: str) -> bytes | None:
        try:
            with self.reached(key, reading=True):
                return bytes(obstore.get(self.control, key).bytes())
        except FileNotFoundError:
            return None

    def remove(self, key: str) -> None:
        with self.reached(key):
            obstore.delete(self.control, key)

    def attempts(self, step_id: str) -> int:
        with self.reached(f"steps/{step_id}/epochs"):
            found = obstore.list_with_delimiter(self.control, f"steps/{step_id}/epochs")["common_prefixes"]
        return max((int(prefix.rstrip("/").rsplit("/", 1)[-1]) for prefix in found), default=0)

    def below(self, key: str) -> list[str]:
        return sorted(name.removeprefix(f"{key}/") for name in self._sizes(key))

    def keep(self, folder: Path, manifest: Manifest) -> None:
        """Makes a folder an object of the bucket. What an upload that was cut off left there is not sent again; a
        manifest always is: what was used a moment ago is not collected."""
        home = f"objects/{manifest.digest}"
        sizes = self._sizes(home)
        missing = [file for file in manifest.files if sizes.get(f"{home}/{file.path}") != file.bytes]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda file: self._send(folder / file.path, f"{home}/{file.path}"), missing))
        sizes = self._sizes(home) if missing else sizes
        for file in manifest.files:
            if (found := sizes.get(f"{home}/{file.path}")) != file.bytes:
                raise Unreachable(f"{self.where}/{home}/{file.path}: {found} bytes after upload; expected {file.bytes}")
        self._send(folder / NAME, f"{home}/{NAME}")

    def manifest(self, digest: str) -> bytes | None:
        """An object's manifest as it was uploaded; None if there is no such object."""
        return self.read(f"objects/{digest}/{NAME}")

    def bring(self, manifest: Manifest, part: str | None, folder: Path) -> None:
        """Downloads the files that `folder` lacks, each whole and compared, or not at all."""
        home = f"objects/{manifest.digest}"
        with ThreadPoolExecutor(AT_ONCE) as pool:
            missing = manifest.missing(folder, part)
            list(pool.map(lambda file: self._fetch(f"{home}/{file.path}", file, folder / file.path), missing))

    def withdraw(self, digest: str) -> None:
        """Removes an object that is not what its manifest says, the manifest first; it can be kept anew then."""
        self.clear(f"objects/{digest}/{NAME}")
        self.clear(f"objects/{digest}")

    def clear(self, prefix: str, before: float | None = None) -> bool:
        """Removes what is below a prefix, or at a key; nothing, and False, if any of it was written since `before`."""
        found = list(self.listed(prefix)) or self._one(prefix)
        if before is not None and any(written >= before for _, _, written in found):
            return False
        if found:
            with self.reached(prefix):
                obstore.delete(self.control, [key for key, _, _ in found])
        return True

    def publish(self, folder: Path, key: str) -> None:
        """Uploads the files below a folder that changed since they were last published by this process."""
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")):
            stat = path.stat()
            stamp = stat.st_size, stat.st_mtime_ns
            if self._published.get(path) != stamp:
                self._send(path, f"{key}/{path.relative_to(folder).as_posix()}")
                self._published[path] = stamp

    def pull(self, key: str, folder: Path) -> None:
        """Downloads what is published below a key and differs in size from the folder's; ours that is longer stays."""
        for name, size in self._sizes(key).items():
            path = folder / name.removeprefix(f"{key}/")
            if not path.exists() or path.stat().st_size < size:
                self._fetch(name, None, path)

    @contextmanager
    def reached(self, key: str, *, reading: bool = False) -> Iterator[None]:
        """Names, as Unreachable, what of the bucket could not be reached; what is read may be missing."""
        try:
            yield
        except AlreadyExistsError:
            raise
        except (BaseError, FileNotFoundError) as error:
            if reading and isinstance(error, FileNotFoundError):
                raise
            raise Unreachable(
                f"{self.where}/{key}: {_first_line(error)}; expected the object storage to answer; see that the bucket,"
                " the region and the credentials are right; what was committed stays, and the same command goes on"
            ) from None

    def listed(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """All keys below a prefix, with bytes and when they were written, in seconds since 1970."""
        with self.reached(prefix):
            for page in obstore.list(self.control, prefix):
                for meta in page:
                    yield meta["path"], meta["size"], meta["last_modified"].timestamp()

    def _sizes(self, prefix: str) -> dict[str, int]:
        return {key: size for key, size, _ in self.listed(prefix)}

    def _one(self, key: str) -> list[tuple[str, int, float]]:
        try:
            with self.reached(key, reading=True):
                meta = obstore.head(self.control, key)
        except FileNotFoundError:
            return []
        return [(key, meta["size"], meta["last_modified"].timestamp())]

    def _send(self, path: Path, key: str) -> None:
        with self.reached(key):
            obstore.put(self.control, key, path, chunk_size=PIECE)

    def _fetch(self, key: str, expected: File | None, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        digest = hashlib.sha256()
        try:
            with self.reached(key, reading=True), fresh.open("wb") as file:
                size = obstore.head(self.control, key)["size"] if expected is None else expected.bytes
                for start in range(0, size, PIECE):
                    piece = obstore.get_range(self.control, key, start=start, end=min(start + PIECE, size))
                    digest.update(piece)
                    file.write(piece)
            if expected is not None and digest.hexdigest() != expected.sha256:
                raise Damaged(
                    f"{self.where}/{key}: content {digest.hexdigest()[:12]}; expected {expected.sha256[:12]}: a kept"
                    " result was changed after it was committed; `ratchet run ... --repair` computes it again"
                )
            fresh.replace(target)
        except FileNotFoundError:
            raise Damaged(
                f"{self.where}/{key}: missing; a kept result was removed; `ratchet run ... --repair` computes it again"
            ) from None
        finally:
            fresh.unlink(missing_ok=True)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
