"""Content digests of sources: data files and model folders.

Hashing a 28 GB model takes a minute, so digests are cached by path, size and modification time in a file of the store.
The cache may be deleted.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ratchet.errors import InputError
from ratchet.orchestrator.atomic_file import write_atomically
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.job_interface.job import Source


class SourceDigests:
    """Digests of sources, cached in a JSON file."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.digests: dict[str, list[Any]] = _load(cache)
        self.changed = False

    def digest(self, source: Source) -> str:
        """Return the sha256, hex, of the relative paths and contents of a source's files.

        Raises InputError if there are none.
        """
        named = source.label or str(source.path)
        if not source.path.exists():
            raise InputError(f"{named}: not found; expected a file or folder at {source.path}; check the path")
        files = sorted(_files(source))
        if not files:
            raise InputError(f"{named}: no such file in the folder; expected {', '.join(source.only)}; check the path")
        with ThreadPoolExecutor(max_workers=8) as pool:
            digests = list(pool.map(self._file_digest, (path for _, path in files)))
        return digest([[name, value] for (name, _), value in zip(files, digests, strict=True)])

    def save(self) -> None:
        """Write the cache if it changed."""
        if self.changed:
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.cache, json.dumps(self.digests))
            self.changed = False

    def _file_digest(self, path: Path) -> str:
        path = path.resolve()
        stat = path.stat()
        stamp = [stat.st_size, stat.st_mtime_ns]
        cached = self.digests.get(str(path))
        if cached and cached[:2] == stamp:
            return str(cached[2])
        with path.open("rb") as file:
            value = hashlib.file_digest(file, "sha256").hexdigest()
        self.digests[str(path)] = [*stamp, value]
        self.changed = True
        return value


def _files(source: Source) -> Iterable[tuple[str, Path]]:
    if source.path.is_file():
        # The name of a single file does not count; its suffix does, since it determines the format.
        yield source.path.suffix, source.path
        return
    for path in source.path.rglob("*"):
        name = path.relative_to(source.path).as_posix()
        if name.startswith(".") or "/." in name:  # the store itself, .git: they change during a run
            continue
        if path.is_file() and any(glob == "**" or fnmatch.fnmatch(name, glob) for glob in source.only):
            yield name, path


def _load(cache: Path) -> dict[str, list[Any]]:
    try:
        digests: dict[str, list[Any]] = json.loads(cache.read_text())
        return digests
    except (FileNotFoundError, ValueError):
        return {}
