"""The content digest of what a person gives: data files, model folders.

Hashing a 28 GB model takes a minute, so each file's digest is remembered by (path, size, modification time) beside
the store; the memory only saves time and may be deleted.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jobs.job import Source
from orchestrator.canonical import digest
from orchestrator.errors import InputError


class SourceDigests:
    """Digests of sources, remembered in the JSON file `memory`."""

    def __init__(self, memory: Path) -> None:
        self.memory = memory
        self.known: dict[str, list] = _load(memory)
        self.changed = False

    def digest(self, source: Source) -> str:
        """sha256, hex, over (relative path, content) of the files that count. Raises InputError if there are none."""
        named = source.label or str(source.path)
        if not source.path.exists():
            raise InputError(f"{named}: no such file or folder; expected one at {source.path}; check the path")
        files = sorted(_files(source))
        if not files:
            raise InputError(f"{named}: holds no file that matches {', '.join(source.only)}; check the path")
        with ThreadPoolExecutor(max_workers=8) as pool:
            digests = list(pool.map(self._file_digest, (path for _, path in files)))
        return digest([[name, value] for (name, _), value in zip(files, digests, strict=True)])

    def save(self) -> None:
        """Writes the memory, if it grew."""
        if self.changed:
            self.memory.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.memory.with_name(f"{self.memory.name}.{os.getpid()}")
            fresh.write_text(json.dumps(self.known))
            fresh.replace(self.memory)
            self.changed = False

    def _file_digest(self, path: Path) -> str:
        path = path.resolve()
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns]
        remembered = self.known.get(str(path))
        if remembered and remembered[:2] == stamp:
            return remembered[2]
        with path.open("rb") as file:
            value = hashlib.file_digest(file, "sha256").hexdigest()
        self.known[str(path)] = [*stamp, value]
        self.changed = True
        return value


def _files(source: Source) -> Iterable[tuple[str, Path]]:
    if source.path.is_file():
        # A file's own name is the person's affair; its suffix tells the format and so counts.
        yield source.path.suffix, source.path
        return
    for path in source.path.rglob("*"):
        name = path.relative_to(source.path).as_posix()
        if name.startswith(".") or "/." in name:  # the store itself, or .git: they change while a run is under way
            continue
        if path.is_file() and any(glob == "**" or fnmatch.fnmatch(name, glob) for glob in source.only):
            yield name, path


def _load(memory: Path) -> dict[str, list]:
    try:
        return json.loads(memory.read_text())
    except (FileNotFoundError, ValueError):
        return {}
