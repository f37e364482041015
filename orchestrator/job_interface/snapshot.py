"""Snapshots: copies of the code of a run, made when it starts. All processes of the run import the snapshot.

The snapshot is the working directory of Ray's runtime environment: Ray sends it to every machine and puts it first on
the import path. Results are therefore not affected by edits during the run, or by other versions on a machine.
The trials of a sweep already run from a snapshot, and take no new one.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import ratchet
from ratchet.orchestrator.atomic_file import walk
from ratchet.orchestrator.job_interface.code import follow_imports, read_file

DIGEST_FILE = "SNAPSHOT"
"""The file of a snapshot that holds its digest."""

PACKAGE_FILES = (
    "*.py",
    "*.css",
    "*.js",
    "*.j2",
    "ratchet/recipes/published/*.yaml",
    "ratchet/examples/*.jsonl",
)
"""Glob patterns of the package's own files. Users may have put other files into its folders `data` and `models`."""


@dataclass(frozen=True)
class Snapshot:
    """The files of a run's code."""

    files: Mapping[str, bytes]
    """Path relative to the import path -> content."""

    @classmethod
    def take(cls, modules: Iterable[str] = ()) -> "Snapshot":
        """Copy the package `ratchet`, the given modules, and all followed modules that they import.

        Raises RecipeError for a module that has no file.
        """
        own = Path(ratchet.__file__).parent
        files = {}
        for folder, _, names in walk(own, followlinks=True):
            for file in names:
                path = Path(folder, file)
                name = path.relative_to(own.parent).as_posix()
                if any(fnmatch(name, glob) for glob in PACKAGE_FILES):
                    files[name] = path
        files |= follow_imports(tuple(dict.fromkeys(modules))).files
        return cls({name: read_file(path) for name, path in sorted(files.items())})

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the names and contents of the files."""
        whole = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            whole.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\n".encode())
        return whole.hexdigest()

    def write(self, folder: Path) -> None:
        """Write the files and the digest into a folder."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        (folder / DIGEST_FILE).write_text(self.digest)


def find_snapshot() -> str:
    """Return the digest of the snapshot from which this process imported Ratchet; empty without a snapshot."""
    try:
        return (Path(ratchet.__file__).parents[1] / DIGEST_FILE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return ""


@contextmanager
def freeze_code(modules: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the digest of a snapshot of these modules, and Ray's runtime environment, for `ray.init` inside the block.

    The environment is empty if this process runs from a snapshot, which the processes that it starts inherit.
    """
    digest = find_snapshot()
    if digest:
        yield digest, {}
        return
    snapshot = Snapshot.take(modules)
    with tempfile.TemporaryDirectory(prefix="ratchet-snapshot-") as folder:
        snapshot.write(Path(folder))
        # Replaces the working directory of a job that Ray's own command started. Ray uploads it when it connects.
        os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
        yield snapshot.digest, {"working_dir": folder}
