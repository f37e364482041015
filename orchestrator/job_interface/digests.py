"""Folders that are verified before they are read: training checkpoints.

    write the files into an unfinished folder -> hash_files -> publish: write DIGESTS.json, then rename the folder

All files are synced to disk, and DIGESTS.json is written last. A folder without DIGESTS.json, or with a file that does
not match it, is damaged.
"""

import hashlib
import json
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ratchet.orchestrator.atomic_file import list_files, sync, walk

NAME = "DIGESTS.json"
THREADS = 8
"""Number of files hashed at once. `hashlib.file_digest` releases the GIL."""


def hash_files(folder: Path, known: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Sync every file below a folder to disk. Return relative POSIX path -> {"bytes": int, "sha256": hex}.

    known: digests of files that are links to files of a published folder. They are not read again."""
    made = dict(known or {})
    paths = []
    for path in list_files(folder):
        if path.relative_to(folder).as_posix() not in made:
            paths.append(path)
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(_sync_and_hash, paths))
    for path, digest in zip(paths, found, strict=True):
        made[path.relative_to(folder).as_posix()] = digest
    return made


def read_digests(folder: Path, part: str) -> dict[str, Any]:
    """Return the digests of the files below `part` of a published folder, by their paths in the folder."""
    return select_digests(json.loads((folder / NAME).read_bytes()), part)


def select_digests(digests: Mapping[str, Any], part: str) -> dict[str, Any]:
    """Return the digests of the files below `part`."""
    return {name: digests[name] for name in digests if name.startswith(f"{part}/")}


def publish(folder: Path, target: Path, digests: Mapping[str, Any]) -> None:
    """Write the digests of `hash_files` into a folder and rename the folder to `target`, replacing an existing one."""
    written = folder / NAME
    written.write_text(json.dumps(digests, indent=1) + "\n")
    sync(written)
    for inside, _, _ in walk(folder):
        sync(Path(inside))
    shutil.rmtree(target, ignore_errors=True)
    folder.rename(target)
    sync(target.parent)


def find_damage(folder: Path, worker_rank: int = 0, workers: int = 1) -> str:
    """Return a message on the first file of a published folder that is missing or differs from its digest, else "".

    With several workers, each worker verifies its share of the files. Raises OSError for a file that cannot be read.
    """
    try:
        digests = json.loads((folder / NAME).read_bytes())
        expected = {
            str(name): (digests[name]["bytes"], digests[name]["sha256"]) for name in sorted(digests)
        }
    except (FileNotFoundError, NotADirectoryError):
        return f"{NAME} is missing"
    except (ValueError, LookupError, TypeError):
        return f"{NAME} cannot be read"
    own = list(expected)[worker_rank::workers]
    with ThreadPoolExecutor(THREADS) as pool:
        problems = pool.map(lambda name: _find_difference(folder / name, *expected[name]), own)
        return next(
            (f"{name} {problem}" for name, problem in zip(own, problems, strict=True) if problem),
            "",
        )


def _find_difference(path: Path, size: int, sha256: str) -> str:
    try:
        found = path.stat().st_size
        if found != size:
            return f"has {found} bytes instead of {size}"
        if compute_sha256(path) == sha256:
            return ""
        return "does not match its digest"
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"


def _sync_and_hash(path: Path) -> dict[str, Any]:
    sync(path)
    return {"bytes": path.stat().st_size, "sha256": compute_sha256(path)}


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
