"""Manifests: the files of an artifact and the job's Result. The digest of a manifest is the artifact's address."""

import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ratchet.errors import CanonicalError, DamagedError, StoreError
from ratchet.orchestrator.atomic_file import walk
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.job_interface.digests import compute_sha256, hash_files

NAME = "MANIFEST.json"
SCHEMA = 1

REPAIR = "`ratchet run ... --repair` computes the result again"

THREADS = 8
"""Number of files hashed at once."""

Stamp = tuple[int, int, int]
"""Inode, size and modification time (ns) of a file. If they are unchanged, the content counts as unchanged."""


@dataclass(frozen=True)
class File:
    """A file of an artifact: relative POSIX path, size in bytes, SHA-256 in hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of an artifact, by path, and the job's result (metrics, tables, curves, cases)."""

    files: tuple[File, ...]
    result: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def build(cls, folder: Path, result: Mapping[str, Any]) -> "Manifest":
        """Hash every file below `folder`. Raises StoreError for links and for paths that `check_safe` refuses."""
        for inside, folders, files in walk(folder):
            for path in (Path(inside, name) for name in (*folders, *files)):
                if path.is_symlink() or not (path.is_dir() or path.is_file()):
                    raise StoreError(
                        f"{path}: a link or special file given; expected plain files; copy what it points to"
                    )
                check_safe(path.relative_to(folder).as_posix(), NAME)
        found = hash_files(folder)
        return cls(tuple(File(name, **about) for name, about in found.items()), result)

    @classmethod
    def load(cls, text: bytes | None, address: str, where: str) -> "Manifest":
        """Parse the manifest at an address. text: its content; None if it is missing. where: its name in messages.

        Raises DamagedError if its digest is not the address, and StoreError if it names files outside its folder or was
        written by a newer version.
        """
        if text is None:
            raise DamagedError(f"{where}: missing; expected a committed result; {REPAIR}")
        try:
            document = json.loads(text)
            refuse_newer(where, "schema", document["schema"], SCHEMA)
            files = tuple(File(**file) for file in document["files"])
            manifest = cls(files, document["result"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedError(
                f"{where}: not a manifest ({error}); expected that of a committed result; {REPAIR}"
            ) from None
        for file in files:
            check_safe(file.path, NAME)
        with suppress(CanonicalError):
            if manifest.digest == address:
                return manifest
        raise DamagedError(
            f"{where}: changed after the commit; expected digest {address[:12]}; {REPAIR}"
        )

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(file.bytes for file in self.files)

    @property
    def document(self) -> dict[str, Any]:
        """The manifest as plain JSON values."""
        return {
            "schema": SCHEMA,
            "files": [asdict(file) for file in self.files],
            "result": self.result,
        }

    @property
    def digest(self) -> str:
        """The artifact's address: SHA-256 (hex) of the manifest's canonical JSON."""
        return digest(self.document)

    def part_digest(self, part: str | None) -> str:
        """Return the digest of the contents of a file or folder (`part`), and of the relative paths in it. None: all.

        A step that reads one folder is not affected by changes in other folders. Raises StoreError if there is no such
        file or folder.
        """
        start = 0 if part is None else len(part.rstrip("/")) + 1
        inside = [[file.path[start:], file.sha256] for file in self.of_part(part)]
        if part is not None and not inside:
            parts = sorted({file.path.split("/")[0] for file in self.files})
            raise StoreError(
                f"artifact: '{part}' given; expected one of {', '.join(parts) or 'none'}"
            )
        return digest(inside)

    def of_part(self, part: str | None) -> list[File]:
        """Return the file `part`, or the files below the folder `part`; None: all files."""
        prefix = "" if part is None else part.rstrip("/") + "/"
        found = []
        for file in self.files:
            if file.path.startswith(prefix) or file.path == part:
                found.append(file)
        return found

    def missing(self, folder: Path, part: str | None = None) -> list[File]:
        """Return the files of `part` (None: all) that are missing in `folder`, or have another size there."""
        inside = self.of_part(part)
        found = []
        for f in inside:
            if not (folder / f.path).exists() or (folder / f.path).stat().st_size != f.bytes:
                found.append(f)
        return found

    def find_damage(
        self,
        where: str,
        sizes: Mapping[str, int],
        folders: Iterable[str],
        hash_file: Callable[[File], str] | None,
        part: str | None = None,
    ) -> Iterator[str]:
        """Yield a message for each file of `part` (None: all) that is missing, has another size or content, or does not
        belong there.

        where: the address for messages. sizes: path -> bytes of the files that exist. folders: the folders that exist.
        hash_file: returns the SHA-256 (hex) of a file; None: contents are not checked.
        """
        known = {file.path for file in self.files} | {NAME}
        parents = set()
        for path in known:
            for parent in PurePosixPath(path).parents:
                parents.add(str(parent))
        strays = [f"{folder}/" for folder in folders if folder not in parents]
        for path in sizes:
            if path not in known and _PARTIAL.sub(r"\1\2", path) not in known:
                strays.append(path)
        for stray in sorted(strays):
            yield describe_damage(
                f"{where}/{stray}", "not in the manifest", "only the files of the result"
            )
        whole = []
        for file in self.of_part(part):
            size = sizes.get(file.path)
            if size == file.bytes:
                whole.append(file)
            else:
                given = "missing" if size is None else f"{size} bytes"
                yield describe_damage(f"{where}/{file.path}", given, f"{file.bytes} bytes")
        if hash_file is None:
            return

        def find_content(file: File) -> str:
            said = ""
            for _ in range(2):  # a shared disk may fail once
                try:
                    return f"content {hash_file(file)[:12]}"
                except ConnectionError:
                    raise
                except OSError as error:
                    said = error.strerror or str(error)
            return said

        def check(file: File) -> str:
            expected = f"content {file.sha256[:12]}"
            given = find_content(file)
            if given == expected:
                return ""
            return describe_damage(f"{where}/{file.path}", given, expected)

        with ThreadPoolExecutor(THREADS) as pool:
            yield from filter(None, pool.map(check, whole))

    def verify(
        self,
        folder: Path,
        *,
        full: bool,
        part: str | None = None,
        known: MutableMapping[Path, Stamp] | None = None,
    ) -> None:
        """Raise DamagedError, naming the file, if a file below `folder` is missing, has another size or (if `full`)
        another content, or does not belong there. Raises StoreError if there is no such part.

        known: stamps of files that were hashed before, which are not hashed again; updated.
        """
        stamps = {} if known is None else known

        def hash_file(file: File) -> str:
            path = folder / file.path
            stat = path.stat()
            stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns
            if stamps.get(path) == stamp:
                return file.sha256
            found = compute_sha256(path)
            if found == file.sha256:
                stamps[path] = stamp
            return found

        self.part_digest(part)
        sizes, folders = list_below(folder if part is None else folder / part, folder)
        checked = hash_file if full else None
        for problem in self.find_damage(str(folder), sizes, folders, checked, part):
            raise DamagedError(problem)


_PARTIAL = re.compile(r"(^|.*/)\.([^/]+)\.[0-9a-f]{8,12}$", re.DOTALL)
"""Name of a file while it is downloaded into a local copy: `.NAME.RANDOM` instead of NAME."""


def refuse_newer(where: str, what: str, given: Any, known: int, by: str = "") -> None:
    """Raise StoreError if the number of a format is larger than the number that this version knows."""
    if isinstance(given, int) and given > known:
        raise StoreError(
            f"{where}: {what} {given}{by} given; this Ratchet reads {what} {known}; upgrade Ratchet"
        )


def list_below(start: Path, root: Path) -> tuple[dict[str, int], list[str]]:
    """Return path relative to `root` -> bytes of the files below `start`, and the folders below it. `start` may also be
    a file, or be missing."""
    sizes = {}
    folders = []
    skip = len(str(root)) + 1
    if start.is_file():
        return {str(start)[skip:]: start.stat().st_size}, []
    for inside, names, found in walk(start):
        prefix = f"{inside[skip:]}/" if len(inside) > skip else ""
        folders += [prefix + name for name in names]
        for name in found:
            with suppress(FileNotFoundError):  # another process removes it
                sizes[prefix + name] = os.lstat(f"{inside}/{name}").st_size
    return sizes, folders


def describe_damage(path: str, given: str, expected: str) -> str:
    """Return the message for a file of an object: what was found, what was committed, what to do."""
    return f"{path}: {given}; expected {expected}: it was changed after the commit; {REPAIR}"


def check_safe(name: str, reserved: str) -> None:
    """Raise StoreError if a relative POSIX path leaves its folder, is `reserved`, or has control characters."""
    parts = PurePosixPath(name).parts
    has_control = any(unicodedata.category(character) == "Cc" for character in name)
    unsafe = name.startswith("/") or ".." in parts or "\\" in name or has_control
    if unsafe or name in ("", ".", reserved):
        raise StoreError(
            f"artifact file {name!r}: a path that leaves its folder or is reserved; expected a plain relative path"
        )
