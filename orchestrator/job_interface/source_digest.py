"""Content digests of sources: data files and model folders.

Hashing a 28 GB model takes a minute, so digests are cached in the store, in one cache file per machine. A cached digest
is used as long as the file has the same size, modification time, change time, inode and device. Copies that keep the
modification time (`cp -p`, `rsync -t`) change some of the others. The cache may be deleted.
"""

import fnmatch
import hashlib
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ratchet.errors import InputError
from ratchet.files import open_regular, read_text
from ratchet.orchestrator.atomic_file import walk, write_atomically
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.job_interface.code import read_script_libraries
from ratchet.orchestrator.job_interface.job import Source

SETTLING_SECONDS = 2.0
"""The digest of a file that changed less than this many seconds before reading is not cached: the file may change again
within the resolution of the file system's clock, without a new time."""


class SourceDigests:
    """Digests of sources, cached in a JSON file."""

    def __init__(self, cache: Path) -> None:
        """cache: the cache file of this machine. Inodes and times of other machines cannot be compared."""
        self.cache = cache
        self.digests: dict[str, list[Any]] = {}
        with suppress(FileNotFoundError, ValueError):
            self.digests = json.loads(cache.read_text())
        self.changed = False

    def digest(self, source: Source) -> str:
        """Return the SHA-256 (hex) of the relative paths and contents of a source's files. Links are followed. A Python
        file, such as a verifier, counts with the versions of the libraries that it imports.

        Raises InputError if there are no files, for broken or circular links, and for a file that changes while it is
        read.
        """
        named = source.label or str(source.path)
        if not os.path.exists(source.path):  # unlike Path.exists, also for a name that is too long
            hub = f", or download a data set of the hub first (hf download --repo-type dataset {named})"
            advice = hub if re.fullmatch(r"[\w.-]+/[\w.-]+", named) else ""
            raise InputError(
                f"{named}: not found; expected a file or folder at {source.path}; check the path{advice}"
            )
        files = list_files(source)
        if not files:
            raise InputError(
                f"{named}: no file that counts in {source.path}; expected files of a model or of data; check the path"
            )
        with ThreadPoolExecutor(max_workers=8) as pool:
            digests = list(pool.map(self._file_digest, (path for _, path in files)))
        content: list[Any] = []
        for (name, _), value in zip(files, digests, strict=True):
            content.append([name, value])
        if source.path.suffix == ".py":
            content.append(read_script_libraries(read_text(source.path)))
        return digest([*content, source.told_by_name] if source.told_by_name else content)

    def save(self) -> None:
        """Write the cache if it changed."""
        if self.changed:
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.cache, json.dumps(self.digests))
            self.changed = False

    def _file_digest(self, path: Path) -> str:
        path = path.resolve()
        with open_regular(path, InputError) as file:
            before = os.fstat(file.fileno())
            started = time.time()
            cached = self.digests.get(str(path))
            if cached and cached[:-1] == get_stamp(before):
                return str(cached[-1])
            value = hashlib.file_digest(file, "sha256").hexdigest()
            if get_stamp(os.fstat(file.fileno())) != get_stamp(before):
                raise InputError(
                    f"{path}: changed while it was read; expected a file that nobody writes; wait until it is complete"
                )
        if max(before.st_mtime, before.st_ctime) < started - SETTLING_SECONDS:
            self.digests[str(path)] = [*get_stamp(before), value]
            self.changed = True
        return value


def get_stamp(stat: os.stat_result) -> list[int]:
    """Return the size, modification time, change time (ns), inode and device, which change with a file's content."""
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]


def list_files(source: Source) -> list[tuple[str, Path]]:
    """Return (relative path, path) of the files in the digest, in order. Hidden files and folders, such as the store
    and .git, are left out, since they change during a run. Raises InputError for broken and circular links."""
    if not source.path.is_dir():
        open_regular(source.path, InputError).close()
        # The name of a single file is not part of the digest, except its suffix, which determines the format.
        return [(source.path.suffix, source.path)]
    found = []
    named = source.label or source.path
    for inside, folders, files in walk(source.path, followlinks=True):
        prefix = Path(inside).relative_to(source.path)
        if Path(inside).resolve() in [parent.resolve() for parent in Path(inside).parents]:
            raise InputError(
                f"{named}: the link {inside} leads to a folder around it; expected a tree of folders; remove the link"
            )
        folders[:] = [name for name in folders if _counts((prefix / name).as_posix(), source)]
        for name in files:
            path = Path(inside, name)
            if not _counts((prefix / name).as_posix(), source):
                continue
            if path.is_symlink() and not path.exists():
                raise InputError(
                    f"{named}: the link {path} leads to {path.readlink()}, which does not exist; expected a file or"
                    " folder; mend or remove the link"
                )
            if path.is_file():
                found.append(((prefix / name).as_posix(), path))
    return sorted(found, key=lambda pair: Path(pair[0]).parts)


def _counts(name: str, source: Source) -> bool:
    hidden = name.rpartition("/")[2].startswith(".")
    return not hidden and not any(fnmatch.fnmatchcase(name, glob) for glob in source.ignored)
