"""The files that a cluster needs to run a recipe: a snapshot of its code, and the files that the command names.

No data, results or environment are uploaded. Files that look like secrets are refused, since everyone with access to
the cluster's jobs can read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ratchet.errors import InputError
from ratchet.orchestrator.job_interface.snapshot import Snapshot
from ratchet.orchestrator.secrets import contains_secret, is_secret_file

LIMIT = 20_000_000
"""Bytes. The program is much smaller."""


def collect_upload(code: Snapshot, named: Sequence[Path], limit: int = LIMIT) -> Snapshot:
    """Return the code with the `named` files (settings), which are uploaded to the top.

    Raises InputError if a named file is missing or would hide another one, for files that look like secrets, and for
    more than `limit` bytes.
    """
    files, where = dict(code.files), {path.name: path for path in named}
    for path in named:
        if not path.is_file():
            raise InputError(f"{path}: no such file; expected one to upload; correct the path")
        if path.name in {name.split("/")[0] for name in files}:
            raise InputError(f"{path}: another file is uploaded as {path.name}; expected a different name; rename it")
        files[path.name] = path.read_bytes()
    for name, content in files.items():
        if is_secret_file(Path(name).name) or contains_secret(content):
            raise InputError(
                f"{where.get(name, name)}: looks like a secret; expected none among the uploaded files;"
                " move it out of the program; put what jobs need on the cluster (docs/cluster.md)"
            )
    if (total := sum(map(len, files.values()))) > limit:
        largest = sorted(files, key=lambda name: -len(files[name]))[:3]
        listed = ", ".join(f"{name} ({len(files[name]) / 1e6:.1f} MB)" for name in largest)
        raise InputError(
            f"upload: {total / 1e6:.1f} MB; expected at most {limit / 1e6:.0f}: a program without data;"
            f" move the largest files away: {listed}"
        )
    return Snapshot(files)


def summary_lines(upload: Snapshot) -> list[str]:
    """Return a line with the size of each file at the top and each folder, and of all files."""
    sizes: dict[str, list[int]] = {}
    for name, content in sorted(upload.files.items()):
        top = "/".join(name.split("/")[:2]) if name.count("/") > 1 else name.split("/")[0]
        sizes.setdefault(top, []).append(len(content))
    sizes["total"] = [len(content) for content in upload.files.values()]
    return [f"{top:20}{len(own):5} files{sum(own) / 1e3:10.1f} kB" for top, own in sizes.items()]
