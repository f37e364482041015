"""Object storage as the backend of a store: S3, Google Cloud Storage and Azure, by URL.

The bucket has the same layout as a folder. A local folder holds work in progress and copies of what was used; the
copies may be removed at any time. The manifest of an object is uploaded last and read first, so that an
object that can be found is complete. Downloads are checked against the digests in the manifest.

Credentials and endpoints come from the usual environment variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_REGION,
GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_NAME, ...) or from the machine's role. They are never stored.
"""

import fcntl
import hashlib
import json
import os
import uuid
from collections.abc import Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

from ratchet.errors import DamagedError, StoreError, UnreachableError
from ratchet.orchestrator.atomic_file import list_files, set_read_only, write_atomically
from ratchet.orchestrator.store.backend import Backend
from ratchet.orchestrator.store.manifest import NAME, File, Manifest, describe_damage

SCHEMES = ("s3", "gs", "az", "memory")
"""URL schemes of buckets. `memory`, for tests, is a bucket in the memory of the process."""

TRANSFERS = 8
"""Number of concurrent transfers."""

PIECE = 16 << 20
"""Bytes per request for a large file. When a connection breaks, this much is transferred again."""

TRIES = 5
"""Attempts to create an object when the answer is lost."""

DAMAGED = ".damaged-"
"""Prefix of the names of marks in an object: all files of an object with such a mark must be uploaded again."""

PATIENCE: Any = {
    "client": {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)},
    "retry": {"max_retries": 10, "retry_timeout": timedelta(seconds=180)},
}
"""Timeouts of one request, and of the request with all its retries."""


class Bucket(Backend):
    """A prefix in object storage. Safe to use from several threads."""

    downloads = True

    def __init__(self, url: str, root: Path | None = None) -> None:
        """root: the local folder. None: a folder of the bucket's in RATCHET_CACHE. Does not access the network. Raises
        StoreError for an unsupported URL, and for a URL with a key or token."""
        parts = urlsplit(url)
        if parts.query or parts.password:
            raise StoreError(
                f"store {parts.scheme}://{parts.hostname}{parts.path}: a key or token given in the URL; expected none,"
                " since URLs are shown in plans and reports; set the library's variables, or give the machine a role"
            )
        self.where = url.rstrip("/")
        # An endpoint without TLS is allowed if the user gives one explicitly.
        plain = any(
            own.startswith("http://")
            for name, own in os.environ.items()
            if name.startswith("AWS_ENDPOINT")
        )
        client: Any = {**PATIENCE["client"], "allow_http": plain}
        if root is None:
            cache = os.environ.get("RATCHET_CACHE") or Path.home() / ".cache" / "ratchet"
            root = Path(cache, hashlib.sha256(self.where.encode()).hexdigest()[:16]).absolute()
        self.root = root
        self._records = self.root / "synced"
        try:
            self.control = from_url(
                self.where, client_options=client, retry_config=PATIENCE["retry"]
            )
        except (BaseError, ValueError) as error:
            raise StoreError(
                f"store {url}: {_first_line(error)}; expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or"
                " az://ACCOUNT/CONTAINER/PREFIX; correct it, or give a folder"
            ) from None

    def __reduce__(self) -> Any:
        # Without credentials: every machine has its own. The path of the local folder is the same on all.
        return Bucket, (self.where, self.root)

    def is_empty(self) -> bool:
        return next(self.list_objects(""), None) is None

    def create(self, key: str, value: bytes) -> bool:
        """Create a small object. Returns False if it exists already.

        No two values may be equal: if an answer is lost, a stored value equal to `value` shows that the request worked.
        """
        for tries in range(TRIES):
            try:
                with self.report_unreachable(key):
                    obstore.put(self.control, key, value, mode="create")
                return True
            except AlreadyExistsError:
                return self.read(key) == value
            except UnreachableError:
                # The library does not retry an exclusive creation, since the request may have succeeded.
                if tries + 1 == TRIES:
                    raise
        return False

    def overwrite(self, key: str, value: bytes, *, durable: bool = True) -> None:
        with self.report_unreachable(key):
            obstore.put(self.control, key, value)

    def read(self, key: str) -> bytes | None:
        try:
            with self.report_unreachable(key, reading=True):
                return bytes(obstore.get(self.control, key).bytes())
        except FileNotFoundError:
            return None

    def remove(self, key: str) -> None:
        with self.report_unreachable(key):
            obstore.delete(self.control, key)

    def list_names(self, key: str) -> list[str]:
        with self.report_unreachable(key):
            found = obstore.list_with_delimiter(self.control, key)
        paths = [*(meta["path"] for meta in found["objects"]), *found["common_prefixes"]]
        return sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in paths)

    def has_object(self, digest: str) -> bool:
        return bool(self._sizes(f"objects/{digest}"))

    def list_sizes(self, digest: str) -> tuple[dict[str, int], list[str]]:
        prefix = f"objects/{digest}"
        names = {}
        for key, size in self._sizes(prefix).items():
            names[key.removeprefix(f"{prefix}/")] = size
        return {name: size for name, size in names.items() if not name.startswith(DAMAGED)}, []

    def hash_file(self, digest: str, file: File) -> str:
        key = f"objects/{digest}/{file.path}"
        found = hashlib.sha256()
        with self.report_unreachable(key):
            for piece in self._read_pieces(key, file.bytes):
                found.update(piece)
        return found.hexdigest()

    def upload(self, folder: Path, manifest: Manifest) -> None:
        """Upload a folder as an object. Files that an interrupted upload has sent are skipped, unless damage was
        reported. The manifest is always sent, which restarts the grace period of `gc`."""
        prefix = f"objects/{manifest.digest}"
        sizes = self._sizes(prefix)
        marks = [key for key in sizes if key.startswith(f"{prefix}/{DAMAGED}")]
        missing = [
            file
            for file in manifest.files
            if marks or sizes.get(f"{prefix}/{file.path}") != file.bytes
        ]
        with ThreadPoolExecutor(TRANSFERS) as pool:
            list(
                pool.map(
                    lambda file: self._send(folder / file.path, f"{prefix}/{file.path}"), missing
                )
            )
        if missing:
            sizes = self._sizes(prefix)
        for file in manifest.files:
            found = sizes.get(f"{prefix}/{file.path}")
            if found != file.bytes:
                raise UnreachableError(
                    f"{self.where}/{prefix}/{file.path}: {found} bytes after upload; expected {file.bytes}"
                )
        self._send(folder / NAME, f"{prefix}/{NAME}")
        if marks:
            with self.report_unreachable(prefix):
                obstore.delete(self.control, marks)

    def download(self, manifest: Manifest, part: str | None, folder: Path) -> None:
        """Download the files that `folder` lacks. Each appears only when it is complete and verified."""
        prefix = f"objects/{manifest.digest}"
        with ThreadPoolExecutor(TRANSFERS) as pool:
            missing = manifest.missing(folder, part)
            list(
                pool.map(
                    lambda file: self._download(f"{prefix}/{file.path}", file, folder / file.path),
                    missing,
                )
            )

    def report_damage(self, digest: str, copy: Path) -> None:
        # Nothing is removed from the bucket: another machine may have replaced the object meanwhile.
        self.overwrite(f"objects/{digest}/{DAMAGED}{uuid.uuid4().hex}", b"")
        with suppress(FileNotFoundError):
            copy.rename(copy.with_name(f".aside-{uuid.uuid4().hex}"))

    def list_entries(self, kind: str, skip: Container[str]) -> Iterator[tuple[str, int, float]]:
        sizes: dict[str, int] = {}
        newest: dict[str, float] = {}
        for meta in self.list_objects(kind):
            name = meta["path"].split("/")[1]
            sizes[name] = sizes.get(name, 0) + meta["size"]
            newest[name] = max(newest.get(name, 0.0), meta["last_modified"].timestamp())
        for name, size in sizes.items():
            if name not in skip:
                yield name, size, newest[name]

    def remove_entry(self, kind: str, name: str, before: float) -> bool:
        prefix = f"{kind}/{name}"
        found = list(self.list_objects(prefix))
        if any(meta["last_modified"].timestamp() >= before for meta in found):
            return False
        # If it is killed in between, an object has no manifest, and an old commit does not become the newest end.
        keys = sorted(
            (meta["path"] for meta in found),
            key=lambda key: (not key.endswith(NAME), len(key), key),
        )
        self._remove_keys(prefix, keys)
        return True

    def _remove_keys(self, prefix: str, keys: list[str]) -> None:
        for start in range(0, len(keys), 1000):
            with self.report_unreachable(prefix):
                obstore.delete(self.control, keys[start : start + 1000])

    def send(self, path: Path, to: Path | None = None) -> None:
        """Upload a file, or the files of a folder that changed since they were sent or fetched, or that the bucket
        lacks."""
        key = self._key(to or path)
        if not path.is_dir():
            stamp = _stamp(path)
            if self._read_synced(key)[1] != stamp or not self._find_file(key):
                self._record_synced(key, self._send(path, key), stamp)
            return
        files = {}
        for file in list_files(path):
            if not file.name.startswith("."):
                files[f"{key}/{file.relative_to(path).as_posix()}"] = file
        known = self._sizes(key)

        def upload(name: str) -> None:
            stamp = _stamp(files[name])
            if name not in known or self._read_synced(name)[1] != stamp:
                self._record_synced(name, self._send(files[name], name), stamp)

        with ThreadPoolExecutor(TRANSFERS) as pool:
            list(pool.map(upload, files))

    def fetch(self, path: Path) -> None:
        """Download what other machines sent since the last time. One process of a machine does it at a time.

        A local file that begins with the sent content, such as the events of a run on this machine, stays."""
        key = self._key(path)
        kind, _, rest = key.partition("/")
        if kind == "objects" and path.is_file():
            return
        with self._lock(key):
            if kind == "objects":
                digest, _, part = rest.partition("/")
                manifest = Manifest.load(self.manifest(digest), digest, f"{self.where}/{key}")
                self.download(manifest, part or None, self.root / kind / digest)
                return
            found = list(self.list_objects(key)) or self._find_file(key)
            with ThreadPoolExecutor(4 * TRANSFERS) as pool:  # most are small
                list(pool.map(self._update, found))

    def list_sent(self, folder: Path) -> list[str]:
        return self.list_names(self._key(folder))

    def discard(self, folder: Path) -> None:
        super().discard(folder)
        key = self._key(folder)
        super().discard(self._records / key)
        self._remove_keys(key, list(self._sizes(key)))

    def _key(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _find_file(self, key: str) -> list[Any]:
        """Return what the storage knows of a single key, if it exists. A listing has only the keys below it."""
        try:
            with self.report_unreachable(key, reading=True):
                return [obstore.head(self.control, key)]
        except FileNotFoundError:
            return []

    def _update(self, meta: Any) -> None:
        """Download a file that another machine sent since it was sent or fetched here."""
        name = meta["path"]
        path = self.root / name
        # Not every storage has ETags.
        version = meta["e_tag"] or f"{meta['size']} {meta['last_modified']}"
        known, before = self._read_synced(name)
        if known == version and path.exists():
            return
        if path.exists() and _stamp(path) != before:
            content = self.read(name)
            if content is None:
                return  # it was removed since it was listed
            if path.read_bytes().startswith(content):
                stamp = _stamp(path)
                self._record_synced(name, version, stamp if stamp[0] == len(content) else [])
                return
        try:
            self._fetch(name, meta["size"], path)
        except FileNotFoundError:
            return
        os.utime(path, (meta["last_modified"].timestamp(),) * 2)
        self._record_synced(name, version, _stamp(path))

    @contextmanager
    def _lock(self, key: str) -> Iterator[None]:
        """Wait for other processes of this machine that fetch the same."""
        file = self.root / "locks" / hashlib.sha256(key.encode()).hexdigest()[:16]
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            yield

    @contextmanager
    def report_unreachable(self, key: str, *, reading: bool = False) -> Iterator[None]:
        """Turn errors of the storage inside the block into UnreachableError. If `reading`, FileNotFoundError passes."""
        try:
            yield
        except AlreadyExistsError:
            raise
        except (BaseError, FileNotFoundError) as error:
            if reading and isinstance(error, FileNotFoundError):
                raise
            raise UnreachableError(
                f"{self.where}/{key}: {_first_line(error)}; expected the object storage to answer; check the bucket,"
                " the region and the credentials and give the same command again: committed results are kept"
            ) from None

    def list_objects(self, prefix: str) -> Iterator[Any]:
        """Yield what the storage knows of all keys below a prefix: path, size, last_modified and e_tag."""
        with self.report_unreachable(prefix):
            for page in obstore.list(self.control, prefix):
                yield from page

    def _sizes(self, prefix: str) -> dict[str, int]:
        return {meta["path"]: meta["size"] for meta in self.list_objects(prefix)}

    def _send(self, path: Path, key: str) -> str:
        with self.report_unreachable(key):
            return (
                obstore.put(self.control, key, path, chunk_size=PIECE, max_concurrency=2)["e_tag"]
                or ""
            )

    def _read_synced(self, name: str) -> tuple[str, list[int]]:
        """Return a published file's version (its ETag) and its local file's stamp at the last upload or download. The
        stamp is empty if the local file differed from the published one."""
        try:
            version, *stamp = json.loads((self._records / name).read_text())
        except (FileNotFoundError, ValueError):
            return "", []
        return version, stamp

    def _record_synced(self, name: str, version: str, stamp: list[int]) -> None:
        write_atomically(self._records / name, json.dumps([version, *stamp]))

    def _read_pieces(self, key: str, size: int) -> Iterator[Any]:
        for start in range(0, size, PIECE):
            yield obstore.get_range(self.control, key, start=start, end=min(start + PIECE, size))

    def _download(self, key: str, expected: File, target: Path) -> None:
        """Download a file of an object."""
        try:
            self._fetch(key, expected.bytes, target, expected.sha256)
        except FileNotFoundError:
            raise DamagedError(
                describe_damage(f"{self.where}/{key}", "missing", f"{expected.bytes} bytes")
            ) from None

    def _fetch(self, key: str, size: int, target: Path, sha256: str | None = None) -> None:
        """Download a file, which appears only when it is complete. sha256: if it is given, the content is verified, and
        the file is read-only. Raises FileNotFoundError if there is none."""
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        digest = hashlib.sha256()
        try:
            with self.report_unreachable(key, reading=True), fresh.open("wb") as file:
                for piece in self._read_pieces(key, size):
                    digest.update(piece)
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            if sha256 is not None:
                if digest.hexdigest() != sha256:
                    given = f"content {digest.hexdigest()[:12]}"
                    raise DamagedError(describe_damage(f"{self.where}/{key}", given, sha256[:12]))
                set_read_only(fresh)
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)


def _stamp(path: Path) -> list[int]:
    """Return the size and modification time (ns) of a file."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
