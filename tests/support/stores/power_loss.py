"""Possible contents of a disk after a power loss at any point of a program.

`record` runs a program and watches every change of a folder. At every operation it keeps the synced state: the content
of each file at its last fsync, and the entries of each folder at its last fsync. `Crash.write_to` writes such a state
into a folder. There are two kinds of states. In the first, everything that was not synced is lost. In the second, as on
file systems with a journal, folders keep their entries, and only the content of files that was not synced is lost.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

Tree = dict[str, "bytes | None"]
"""Relative path -> content of a file; None for a folder."""

RECORDER = """
import os, pickle, stat, sys

WATCHED, OUTPUT, LOST = sys.argv[1:4]
data, entries, kinds, held, crashes, marks, places = {}, {}, {}, [], [], [], {}
busy = False
real_fsync = os.fsync

def key_of(found):
    return found.st_dev, found.st_ino

def scan(folder):
    found = {}
    for name in os.listdir(folder):
        status = os.lstat(f"{folder}/{name}")
        kinds[key_of(status)] = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        found[name] = key_of(status)
    return found

def tree_of(key, prefix, entries_of):
    tree = {}
    for name, child in entries_of(key, prefix).items():
        path = f"{prefix}/{name}" if prefix else name
        if kinds[child] == "folder":
            tree[path] = None
            tree.update(tree_of(child, path, entries_of))
        else:
            tree[path] = data.get(child, b"")
    return tree

def capture():
    # What a power loss at this moment leaves behind.
    global busy
    if busy or not os.path.isdir(WATCHED):
        return
    busy = True
    try:
        root = key_of(os.stat(WATCHED))
        synced = tree_of(root, "", lambda key, path: entries.get(key, {}))
        ahead = tree_of(root, "", lambda key, path: scan(f"{WATCHED}/{path}"))
        for tree in (synced, ahead):
            if (tree, marks) not in crashes[-2:]:
                crashes.append((tree, list(marks)))
    finally:
        busy = False

def find_place():
    # Who syncs: the innermost functions of Ratchet, such as `replace > _write_temporary`.
    frame = sys._getframe(2)
    names = []
    while frame is not None and len(names) < 3:
        if "orchestrator" in frame.f_code.co_filename and frame.f_code.co_name not in ("sync", "__enter__"):
            names.insert(0, frame.f_code.co_name)
        frame = frame.f_back
    return " > ".join(names)

def fsync(descriptor):
    capture()
    real_fsync(descriptor)
    place = find_place()
    places[place] = None
    if LOST and place == LOST:
        return  # as if the program had not synced
    status = os.fstat(descriptor)
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    held.append(os.dup(descriptor))  # so that its number is not used again for another file
    if stat.S_ISDIR(status.st_mode):
        entries[key_of(status)] = scan(path)
    else:
        with open(f"/proc/self/fd/{descriptor}", "rb") as file:
            data[key_of(status)] = file.read()
    capture()

def watch(event, arguments):
    if event in ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.symlink", "os.truncate") or (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    ):
        capture()

os.fsync = fsync
sys.addaudithook(watch)

def mark(what):
    # From now on, every state must show this.
    capture()
    marks.append(what)
    capture()

"""

END = """
capture()
with open(OUTPUT, "wb") as file:
    pickle.dump((crashes, list(places)), file)
os._exit(0)
"""


@dataclass(frozen=True)
class Crash:
    """The content of a folder after a power loss."""

    tree: Tree
    marks: tuple[str, ...]
    """What the program had reported as done with `mark(what)`."""

    def write_to(self, folder: Path) -> None:
        """Create the folder with this content."""
        folder.mkdir(parents=True)
        for name, content in self.tree.items():
            if content is None:
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(content)


def record(program: str, watched: Path, folder: Path, lost: str = "") -> Iterator[Crash]:
    """Run a Python program that changes `watched`, and yield the states after a power loss at every point of it.

    The program is called with `watched` as its argument, and may call `mark(what)`. lost: a place of `list_places` that
    does not sync.
    """
    output = folder / "crashes.pickle"
    command = [sys.executable, "-c", RECORDER + program + END, str(watched), str(output), lost]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    seen: list[Crash] = []
    for tree, marks in pickle.loads(output.read_bytes())[0]:
        crash = Crash(tree, tuple(marks))
        if crash not in seen[-4:]:
            seen.append(crash)
            yield crash


def list_places(folder: Path) -> list[str]:
    """Return the places of the last recorded program that synced, as the names of functions."""
    found: list[str] = pickle.loads((folder / "crashes.pickle").read_bytes())[1]
    return found
