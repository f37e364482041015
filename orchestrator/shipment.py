"""What a cluster needs of this checkout to run a recipe: the program and the files that the command names.

Nothing else is uploaded: no data, no results, no environment. What looks like a secret is refused, since whoever may
see the cluster's jobs may see their files.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.secret import holds_secret, is_secret_file

PROGRAM = ("recipes", "orchestrator", "jobs", "models", "data", "tune_spaces")
LIMIT = 20_000_000
"""Bytes: the program is a fraction of it."""
LEFT_OUT = {"__pycache__"}


@dataclass(frozen=True)
class Shipment:
    files: dict[str, Path]
    """Path on the cluster, relative to the job's folder -> the file here."""

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files.values())

    def digest(self) -> str:
        """Of the files' names and contents, hex."""
        whole = hashlib.sha256()
        for name, path in sorted(self.files.items()):
            whole.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return whole.hexdigest()

    def lay_out(self, folder: Path) -> None:
        """Copies the files there."""
        for name, path in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)

    def lines(self) -> list[str]:
        """A line for each folder or file at the top, with its size."""
        sizes: dict[str, list[int]] = {}
        for name, path in self.files.items():
            sizes.setdefault(name.split("/")[0], []).append(path.stat().st_size)
        return [f"{top:20}{len(own):5} files{sum(own) / 1e3:10.1f} kB" for top, own in sorted(sizes.items())]


def pack(root: Path, named: Sequence[Path], limit: int = LIMIT) -> Shipment:
    """The program below `root`, and `named` files (a recipe, settings), which go to the top by their names.

    Raises InputError for a named file that is missing or would hide a part of the program, for what looks like a
    secret, and for more than `limit` bytes.
    """
    files = {
        path.relative_to(root).as_posix(): path
        for top in PROGRAM
        for path in sorted((root / top).rglob("*"))
        if path.is_file() and not LEFT_OUT & set(path.parts)
    }
    for path in named:
        if not path.is_file():
            raise InputError(f"{path}: no such file; expected one to upload; correct the path")
        if path.name in PROGRAM or files.get(path.name, path) != path:
            raise InputError(f"{path}: another file is uploaded as {path.name}; expected names of their own; rename it")
        files[path.name] = path
    for name, path in files.items():
        if is_secret_file(path.name) or holds_secret(path.read_bytes()):
            raise InputError(
                f"{path}: looks like a secret; expected none among what is uploaded ({name});"
                " move it out of the program; what jobs need lies on the cluster (docs/cluster.md)"
            )
    shipment = Shipment(files)
    if shipment.bytes > limit:
        largest = sorted(files.values(), key=lambda path: -path.stat().st_size)[:3]
        told = ", ".join(f"{path} ({path.stat().st_size / 1e6:.1f} MB)" for path in largest)
        raise InputError(
            f"upload: {shipment.bytes / 1e6:.1f} MB; expected at most {limit / 1e6:.0f}: a program, not its data;"
            f" move away what is large: {told}"
        )
    return shipment
