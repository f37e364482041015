"""Files that are complete or absent, even after a power loss, and append-only files of JSON lines.

A file is synced before it gets its name, and its folder afterwards. Temporary names start with a dot. The listings of
the store leave out such names, so that files of killed processes are never read.
"""

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Create or replace a text file atomically and durably: a reader sees the whole old text or the whole new text."""
    replace(path, text.encode())


def replace(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Create or replace a file atomically. Missing folders are created.

    durable: sync the file. If false, a power loss may leave the old content, the new content, or an empty file.
    """
    with _write_temporary(path, content, durable) as temporary:
        os.replace(temporary, path)
        if durable:
            sync(path.parent)


def create(path: Path, content: bytes) -> bool:
    """Create a file with its whole content, exclusively and durably. Returns False if it exists already."""
    with _write_temporary(path, content, durable=True) as temporary:
        try:
            os.link(temporary, path)
        except FileExistsError:
            # On NFS the answer to a link that succeeded may be lost, and the repeated request fails.
            if os.stat(temporary).st_nlink == 1:
                return False
        # Another process may have renamed the folder, as garbage collection does before it checks a folder.
        with suppress(FileNotFoundError):
            sync(path.parent)
    return True


def append_json(path: Path, value: Mapping[str, Any], *, durable: bool = False) -> None:
    """Append a line of JSON in one write, so that lines of several processes never mix.

    durable: sync the file. If false, a power loss may cut off its end. A cut-off last line first gets a line break.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        cut_off = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = ("\n" * cut_off + json.dumps(value) + "\n").encode()
        written = os.write(descriptor, line)
        while written < len(line):  # the disk is nearly full: the next write says so
            written += os.write(descriptor, line[written:])
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if durable and size == 0:
        sync(path.parent)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file, one per line; empty if there is no file. Incomplete lines are skipped."""
    try:
        texts = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for text in texts:
        with suppress(ValueError, RecursionError):
            if isinstance(line := json.loads(text), dict):
                found.append(line)
    return found


def make_folder(path: Path, *, new: bool = False) -> None:
    """Create a folder and its parents durably, if it is missing. new: raise FileExistsError if it exists."""
    if path.is_dir() and not new:
        return
    make_folder(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if new or not path.is_dir():
            raise
    sync(path.parent)


def link(file: str | Path, target: str | Path) -> None:
    """Create a hard link to a file that nobody changes, or a copy where the file system has no links."""
    Path(target).unlink(missing_ok=True)
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK):
            raise
        shutil.copyfile(file, target)


def copy_foreign_links(folder: Path, *known: Path) -> None:
    """Replace each file of a folder that has a hard link outside this folder and the `known` ones by a copy: whoever
    has the link could change the content."""
    own: dict[tuple[int, int], list[Path]] = {}
    for place in (folder, *known):
        for path in list_files(place):
            stat = path.lstat()
            if stat.st_nlink > 1:
                own.setdefault((stat.st_dev, stat.st_ino), []).append(path)
        if not own:
            return
    for paths in own.values():
        foreign = paths[0].lstat().st_nlink > len(paths)
        for path in paths:
            if foreign and path.is_relative_to(folder) and not path.is_symlink():
                copy = path.with_name(f".copy-{uuid.uuid4().hex}")
                shutil.copyfile(path, copy)
                copy.replace(path)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def walk(folder: str | Path, **options: Any) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk as os.walk does, but raise OSError for a folder that cannot be listed, instead of leaving it out. A folder
    that is missing, or is removed meanwhile, is empty."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    return os.walk(folder, onerror=refuse, **options)


def list_files(folder: Path) -> list[Path]:
    """Return all files below a folder, in order. Raises OSError as `walk` does."""
    found = []
    for inside, _, names in walk(folder):
        found += [Path(inside, name) for name in names]
    return sorted(found)


def sync_tree(folder: Path) -> None:
    """Flush everything in a folder to disk: files, and the entries of folders."""
    for inside, _, files in walk(folder):
        for name in files:
            sync(Path(inside, name))
        sync(Path(inside))


@contextmanager
def _write_temporary(path: Path, content: bytes, durable: bool) -> Iterator[Path]:
    """Yield a file with the content, beside `path`; it is removed at the end."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        if not path.parent.is_dir():
            make_folder(path.parent)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        yield temporary
    except OSError as error:
        # Errors of a file descriptor, such as a full disk, do not name the file.
        if error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            os.unlink(temporary)


WRITE = 0o222


def make_read_only(folder: Path) -> None:
    """Make everything below a folder read-only. The folder itself stays writable: a read-only folder cannot be moved to
    another parent."""
    for inside, folders, files in walk(folder):
        for name in (*folders, *files):
            set_read_only(Path(inside, name))


def set_read_only(path: Path) -> None:
    """Make a file or folder read-only."""
    path.chmod(path.stat().st_mode & 0o7777 & ~WRITE)


def remove_empty_folders(folder: Path) -> None:
    """Remove all folders without files below a folder: manifests do not list folders, and buckets have none."""
    for inside, _, _ in walk(folder, topdown=False):
        if inside != str(folder) and not os.listdir(inside):
            os.rmdir(inside)


def allow_writing(folder: Path) -> None:
    """Allow the owner to list a folder and the folders below it, and to add and remove entries. Files stay
    read-only."""
    _allow_owner(folder)
    for inside, folders, _ in walk(folder):
        for name in folders:
            path = Path(inside, name)
            if not path.is_symlink():
                _allow_owner(path)


def _allow_owner(folder: Path) -> None:
    with suppress(PermissionError):  # another user's, in which the group may be allowed to write
        os.chmod(folder, folder.stat().st_mode & 0o7777 | 0o700)


def check_removable(folder: Path) -> None:
    """Raise PermissionError for a folder inside which this user may not remove everything, such as another user's
    object."""
    for inside, _, _ in walk(folder):
        with suppress(FileNotFoundError):  # another process removes it
            own = os.stat(inside).st_uid == os.geteuid()
            if not own and not os.access(inside, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "it belongs to another user", inside)


def remove_tree(folder: Path) -> None:
    """Remove a folder, even if it has read-only folders. Raises FileNotFoundError if another process removes it."""
    allow_writing(folder)
    shutil.rmtree(folder)
