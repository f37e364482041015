"""Permissions of objects: files and folders that nobody may write."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

WRITE = 0o222


def make_read_only(folder: Path) -> None:
    """Take away the permission to write everything below a folder. The folder itself stays as it is, since one without
    it cannot be moved to another parent."""
    for inside, folders, files in os.walk(folder):
        for name in (*folders, *files):
            set_read_only(Path(inside, name))


def set_read_only(path: Path) -> None:
    """Take away the permission to write one file or folder."""
    path.chmod(path.stat().st_mode & 0o7777 & ~WRITE)


def remove_empty_folders(folder: Path) -> None:
    """Remove the folders below a folder that hold no file: a manifest does not list them, a bucket has none."""
    for inside, _, _ in os.walk(folder, topdown=False):
        if inside != str(folder) and not os.listdir(inside):
            os.rmdir(inside)


def allow_writing(folder: Path) -> None:
    """Allow the owner to add and remove entries of a folder and of those below it. Its files stay read-only."""
    for inside, _, _ in os.walk(folder):
        os.chmod(inside, os.stat(inside).st_mode & 0o7777 | 0o700)


def remove_tree(folder: Path) -> None:
    """Remove a folder, also one in which folders are read-only. Raises FileNotFoundError if another process does it."""
    allow_writing(folder)
    shutil.rmtree(folder)
