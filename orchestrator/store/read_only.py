"""Permissions of objects: their files and folders are read-only."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

WRITE = 0o222


def make_read_only(folder: Path) -> None:
    """Make everything below a folder read-only. The folder itself stays writable: a read-only folder cannot be moved to
    another parent."""
    for inside, folders, files in os.walk(folder):
        for name in (*folders, *files):
            set_read_only(Path(inside, name))


def set_read_only(path: Path) -> None:
    """Make a file or folder read-only."""
    path.chmod(path.stat().st_mode & 0o7777 & ~WRITE)


def remove_empty_folders(folder: Path) -> None:
    """Remove all folders without files below a folder: manifests do not list folders, and buckets have none."""
    for inside, _, _ in os.walk(folder, topdown=False):
        if inside != str(folder) and not os.listdir(inside):
            os.rmdir(inside)


def allow_writing(folder: Path) -> None:
    """Allow the owner to add and remove entries of a folder and of the folders below it. Files stay read-only."""
    for inside, _, _ in os.walk(folder):
        os.chmod(inside, os.stat(inside).st_mode & 0o7777 | 0o700)


def remove_tree(folder: Path) -> None:
    """Remove a folder, even if it has read-only folders. Raises FileNotFoundError if another process removes it."""
    allow_writing(folder)
    shutil.rmtree(folder)
