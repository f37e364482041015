"""Manifests: the files of an artifact and the job's result. The digest of a manifest is the artifact's address."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ratchet.errors import DamagedError, StoreError
from ratchet.orchestrator.canonical_json import digest

NAME = "MANIFEST.json"
SCHEMA = 1

Stamp = tuple[int, int, int]
"""Inode, size and modification time (ns) of a file. While they are unchanged, the content is."""


@dataclass(frozen=True)
class File:
    """One file: `path` relative and posix, `bytes`, `sha256` hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of an artifact, by path, and the job's result (metrics, tables, curves, cases)."""

    files: tuple[File, ...]
    result: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def build(cls, folder: Path, result: Mapping[str, Any]) -> Manifest:
        """Hash every file below `folder`. Raises StoreError for links and for file names that are not portable."""
        paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
        names = [path.relative_to(folder).as_posix() for path in paths]
        for path, name in zip(paths, names, strict=True):
            if path.is_symlink() or not path.is_file():
                raise StoreError(f"{path}: a link or special file given; expected plain files; copy what it points to")
            _check_name(name)
        with ThreadPoolExecutor(max_workers=8) as pool:
            sums = list(pool.map(_sha256, paths))
        files = (File(name, path.stat().st_size, value) for name, path, value in zip(names, paths, sums, strict=True))
        return cls(tuple(files), result)

    @classmethod
    def from_bytes(cls, text: bytes) -> Manifest:
        """Parse a manifest. Raises DamagedError if it is not one, StoreError if it names files outside its folder."""
        try:
            document = json.loads(text)
            files = tuple(File(**file) for file in document["files"])
            manifest = cls(files, document["result"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"{NAME}: not a manifest ({error})") from None
        for file in files:
            _check_name(file.path)
        return manifest

    @property
    def document(self) -> dict[str, Any]:
        """The manifest as plain JSON values."""
        return {"schema": SCHEMA, "files": [asdict(file) for file in self.files], "result": self.result}

    def to_bytes(self) -> bytes:
        """Return the content of the file: columns and metrics in the job's order. The address ignores the order."""
        return json.dumps(self.document, ensure_ascii=False, indent=1).encode()

    @property
    def digest(self) -> str:
        """sha256, hex, of the canonical JSON: the artifact's address."""
        return digest(self.document)

    def part_digest(self, part: str | None) -> str:
        """Return the digest of the files below the folder `part` (None: all), by content and path within it.

        A step whose input is one folder is not affected by changes in another. Raises StoreError if there is no such
        folder.
        """
        start = 0 if part is None else len(part.rstrip("/")) + 1
        inside = [[file.path[start:], file.sha256] for file in self.of_part(part)]
        if part is not None and not inside:
            parts = sorted({file.path.split("/")[0] for file in self.files if "/" in file.path})
            raise StoreError(f"artifact: '{part}' given; expected one of its folders: {', '.join(parts) or 'none'}")
        return digest(inside)

    def of_part(self, part: str | None) -> list[File]:
        """Return the files below the folder `part`; None: all."""
        prefix = "" if part is None else part.rstrip("/") + "/"
        return [file for file in self.files if file.path.startswith(prefix)]

    def missing(self, folder: Path, part: str | None = None) -> list[File]:
        """Return the files (of one part) that are missing in `folder` or differ in size."""
        inside = self.of_part(part)
        return [f for f in inside if not (folder / f.path).exists() or (folder / f.path).stat().st_size != f.bytes]

    def verify(
        self, folder: Path, *, full: bool, part: str | None = None, known: MutableMapping[Path, Stamp] | None = None
    ) -> None:
        """Raises DamagedError, naming the file, if the files below `folder` differ in size or, if `full`, in content.

        known: files that were hashed before, with their stamps; updated. Raises StoreError if there is no such part.
        """
        known = {} if known is None else known
        self.part_digest(part)
        unread: list[tuple[Path, Stamp, File]] = []
        for file in self.of_part(part):
            path = folder / file.path
            try:
                stat = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                raise DamagedError(_damage(path, "missing", f"{file.bytes} bytes")) from None
            if stat.st_size != file.bytes:
                raise DamagedError(_damage(path, f"{stat.st_size} bytes", f"{file.bytes}"))
            stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns
            if full and known.get(path) != stamp:
                unread.append((path, stamp, file))
        with ThreadPoolExecutor(max_workers=8) as pool:
            for (path, stamp, file), found in zip(unread, pool.map(_sha256, [u[0] for u in unread]), strict=True):
                if found != file.sha256:
                    raise DamagedError(_damage(path, f"content {found[:12]}", f"{file.sha256[:12]}"))
                known[path] = stamp


def _damage(path: Path, given: str, expected: str) -> str:
    return (
        f"{path}: {given}; expected {expected}: it was changed after the commit;"
        " `ratchet run ... --repair` moves the result aside and recomputes it"
    )


def _check_name(name: str) -> None:
    parts: Sequence[str] = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or name in ("", NAME) or "\n" in name:
        raise StoreError(
            f"artifact file '{name}': a path that leaves its folder or is reserved; expected a plain relative path"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
