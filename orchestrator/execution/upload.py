"""The files that a cluster needs to run a recipe: the program and the files that the command names.

No data, results or environment are uploaded. Files that look like secrets are refused, since everyone with access to
the cluster's jobs can read them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import InputError
from ratchet.orchestrator.secrets import contains_secret, is_secret_file

PROGRAM = ("ratchet", "tune_spaces")
"""Folders that are uploaded. Symbolic links are followed: on the cluster `ratchet/jobs` is a folder."""
LIMIT = 20_000_000
"""Bytes. The program is much smaller."""
LEFT_OUT = {"__pycache__"}


@dataclass(frozen=True)
class Upload:
    """Files to upload."""

    files: dict[str, Path]
    """Path on the cluster, relative to the job's folder -> local file."""

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())

    def digest(self) -> str:
        """Return the sha256, hex, of the names and contents of the files."""
        whole = hashlib.sha256()
        for name, path in sorted(self.files.items()):
            whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return whole.hexdigest()

    def copy_to(self, folder: Path) -> None:
        """Copy the files to a folder."""
        for name, path in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)

    def summary_lines(self) -> list[str]:
        """Return a line for each file at the top and each folder, with its size."""
        sizes: dict[str, list[int]] = {}
        for name, path in self.files.items():
            top = "/".join(name.split("/")[:2]) if name.count("/") > 1 else name.split("/")[0]
            sizes.setdefault(top, []).append(path.stat().st_size)
        return [f"{top:20}{len(own):5} files{sum(own) / 1e3:10.1f} kB" for top, own in sorted(sizes.items())]


def collect_upload(root: Path, named: Sequence[Path], limit: int = LIMIT) -> Upload:
    """Collect the program below `root` and the `named` files (a recipe, settings), which are uploaded to the top.

    Raises InputError if a named file is missing or would hide another one, for files that look like secrets, and for
    more than `limit` bytes.
    """
    files = {
        path.relative_to(root).as_posix(): path
        for top in PROGRAM
        for folder, _, names in os.walk(root / top, followlinks=True)
        for path in (Path(folder, name) for name in sorted(names))
        if not LEFT_OUT & set(path.parts)
    }
    for path in named:
        if not path.is_file():
            raise InputError(f"{path}: no such file; expected one to upload; correct the path")
        if path.name in PROGRAM or files.get(path.name, path) != path:
            raise InputError(f"{path}: another file is uploaded as {path.name}; expected a different name; rename it")
        files[path.name] = path
    for name, path in files.items():
        if is_secret_file(path.name) or contains_secret(path.read_bytes()):
            raise InputError(
                f"{path}: looks like a secret; expected none among the uploaded files ({name});"
                " move it out of the program; put what jobs need on the cluster (docs/cluster.md)"
            )
    upload = Upload(files)
    if upload.bytes > limit:
        largest = sorted(files.values(), key=lambda path: -path.stat().st_size)[:3]
        listed = ", ".join(f"{path} ({path.stat().st_size / 1e6:.1f} MB)" for path in largest)
        raise InputError(
            f"upload: {upload.bytes / 1e6:.1f} MB; expected at most {limit / 1e6:.0f}: a program without data;"
            f" move the largest files away: {listed}"
        )
    return upload
