"""Damage to stored results, whose files and folders are read-only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def writable(path: Path) -> Iterator[Path]:
    """Allow writing to a file or folder, and restore its permissions."""
    mode = path.stat().st_mode
    path.chmod(mode | 0o200)
    yield path
    if path.exists():
        path.chmod(mode)


def change(file: Path, text: str) -> None:
    """Replace the content of a file of a result."""
    with writable(file):
        file.write_text(text)


def add(file: Path, text: str = "stray") -> None:
    """Put another file into a folder of a result."""
    with writable(file.parent):
        file.write_text(text)


def remove(file: Path) -> None:
    """Remove a file of a result."""
    with writable(file.parent):
        file.unlink()
