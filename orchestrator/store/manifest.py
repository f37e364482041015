"""What an artifact consists of, file by file; its digest is the artifact's address."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.canonical import digest
from orchestrator.errors import Damaged, StoreError

NAME = "MANIFEST.json"
SCHEMA = 1

Stamp = tuple[int, int, int]
"""Inode, size and modification time (ns) of a file: as long as they stay, so does the content."""


@dataclass(frozen=True)
class File:
    """One file: `path` relative and posix, `bytes`, `sha256` hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of an artifact, by path, and the job's result (metrics, tables, curves, examples)."""

    files: tuple[File, ...]
    result: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def build(cls, folder: Path, result: Mapping[str, Any]) -> Manifest:
        """Reads every file below `folder`. Raises StoreError for links and for names that other systems cannot hold."""
        paths = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
        names = [path.relative_to(folder).as_posix() for path in paths]
        for path, name in zip(paths, names, strict=True):
            if path.is_symlink() or not path.is_file():
                raise StoreError(f"{path}: a link or special file given; expected plain files; copy what it points to")
            _checked(name)
        with ThreadPoolExecutor(max_workers=8) as pool:
            sums = list(pool.map(_sha256, paths))
        files = (File(name, path.stat().st_size, value) for name, path, value in zip(names, paths, sums, strict=True))
        return cls(tuple(files), result)

    @classmethod
    def from_bytes(cls, text: bytes) -> Manifest:
        """Raises Damaged for what is no manifest, or names files outside its folder."""
        try:
            document = json.loads(text)
            files = tuple(File(**file) for file in document["files"])
            manifest = cls(files, document["result"])
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{NAME}: not a manifest ({error})") from None
        for file in files:
            _checked(file.path)
        return manifest

    @property
    def document(self) -> dict[str, Any]:
        """The manifest as plain JSON values."""
        return {"schema": SCHEMA, "files": [asdict(file) for file in self.files], "result": self.result}

    def to_bytes(self) -> bytes:
        """As it is written: columns and metrics in the job's order, which the address does not depend on."""
        return json.dumps(self.document, ensure_ascii=False, indent=1).encode()

    @property
    def digest(self) -> str:
        """sha256, hex, of the canonical form: the artifact's address."""
        return digest(self.document)

    def part_digest(self, part: str | None) -> str:
        """Digest over the files below the folder `part` (None: all), by content and path within it.

        Whoever takes one folder is not touched by a change in another. Raises StoreError if there is no such folder.
        """
        start = 0 if part is None else len(part.rstrip("/")) + 1
        inside = [[file.path[start:], file.sha256] for file in self.of_part(part)]
        if part is not None and not inside:
            parts = sorted({file.path.split("/")[0] for file in self.files if "/" in file.path})
            raise StoreError(f"artifact: '{part}' given; expected one of its folders: {', '.join(parts) or 'none'}")
        return digest(inside)

    def of_part(self, part: str | None) -> list[File]:
        """The files below the folder `part`; None: all."""
        prefix = "" if part is None else part.rstrip("/") + "/"
        return [file for file in self.files if file.path.startswith(prefix)]

    def missing(self, folder: Path, part: str | None = None) -> list[File]:
        """The files (of one part) that are not below `folder`, or not in their size."""
        inside = self.of_part(part)
        return [f for f in inside if not (folder / f.path).exists() or (folder / f.path).stat().st_size != f.bytes]

    def verify(
        self, folder: Path, *, full: bool, part: str | None = None, known: MutableMapping[Path, Stamp] | None = None
    ) -> None:
        """Raises Damaged, naming the file, if the files below `folder` are not these: size, or every byte (`full`).

        known: files whose bytes were compared before, as they were then; brought up to date. Raises StoreError for a
        part that the artifact does not have.
        """
        known = {} if known is None else known
        self.part_digest(part)
        unread: list[tuple[Path, Stamp, File]] = []
        for file in self.of_part(part):
            path = folder / file.path
            try:
                stat = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                raise Damaged(_damage(path, "missing", f"{file.bytes} bytes")) from None
            if stat.st_size != file.bytes:
                raise Damaged(_damage(path, f"{stat.st_size} bytes", f"{file.bytes}"))
            stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns
            if full and known.get(path) != stamp:
                unread.append((path, stamp, file))
        with ThreadPoolExecutor(max_workers=8) as pool:
            for (path, stamp, file), found in zip(unread, pool.map(_sha256, [u[0] for u in unread]), strict=True):
                if found != file.sha256:
                    raise Damaged(_damage(path, f"content {found[:12]}", f"{file.sha256[:12]}"))
                known[path] = stamp


def _damage(path: Path, given: str, expected: str) -> str:
    return (
        f"{path}: {given}; expected {expected}: a kept result was changed after it was committed;"
        " `ratchet run ... --repair` moves it aside and computes it again"
    )


def _checked(name: str) -> None:
    parts: Sequence[str] = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or name in ("", NAME) or "\n" in name:
        raise StoreError(
            f"artifact file '{name}': a path that leaves its folder or is reserved; expected a plain relative path"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
