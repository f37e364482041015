"""`gc` on a full disk, and by another member of a team. The users are real ones, which only root can play."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from store_contents import HOUR, age, made_of

from ratchet.orchestrator import gc
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.store import Store

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount, and play users")


def commit(root: Path, step_id: str, text: str = "x") -> str:
    return made_of(Store.open(root), step_id, {"part/x": text}).manifest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"0" * 4096)
    assert shutil.disk_usage(path.parent).free < 4096


@needs_root
def test_gc_frees_a_full_disk(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = small_disk / "s"
    made = commit(store, "a" * 64, "x" * 300_000)
    age(store, 2 * HOUR)
    fill(small_disk / "filler")
    options = ["--store", str(store), "--keep", "0", "--grace-period", "0.02"]
    assert main(["gc", "--yes", *options]) == 0
    assert re.search(r"2 things, 0\.3 MB removed", capsys.readouterr().out)
    assert not (store / "objects" / made).exists()
    assert shutil.disk_usage(small_disk).free > 300_000


@pytest.fixture
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of a group, which all its members may write."""
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    os.chmod(folder, 0o755)
    (folder / "s").mkdir()
    os.chown(folder / "s", 1001, 2000)
    os.chmod(folder / "s", 0o2775)
    yield folder / "s"
    shutil.rmtree(folder)


def play(user: int, work: Callable[[], object]) -> str:
    """Do some work as a user of the group, in another process. Return its result, or its error, as text."""
    read, write = os.pipe()
    process = os.fork()
    if process == 0:
        os.setgroups([2000])
        os.setgid(2000)
        os.setuid(user)
        os.umask(0o002)
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        said = pipe.read()
    os.waitpid(process, 0)
    return said


@needs_root
def test_members_of_a_team_share_a_store(team: Path) -> None:
    def collect() -> str:
        store = Store.open(team, create=False)
        removed = gc.remove_garbage(gc.find_garbage(store, keep=0, grace=60))
        return " ".join(sorted(item.kind for item in removed))

    def repair() -> str:
        store = Store.open(team)
        damaged = store.lookup("a" * 64)
        assert damaged is not None
        store.withdraw(damaged)
        return commit(team, "a" * 64, "one")

    one, two = 1001, 1002
    first = play(one, lambda: commit(team, "a" * 64, "one"))
    assert play(two, lambda: Store.open(team).use("a" * 64) is not None) == "True"
    other = play(two, lambda: commit(team, "b" * 64, "two"))
    file = team / "objects" / first / "part" / "x"
    os.chmod(file, 0o644)
    file.write_text("damaged")
    os.chmod(file, 0o444)
    assert play(two, repair) == first
    age(team, 2 * HOUR)
    assert play(one, lambda: Store.open(team).use("b" * 64) is not None) == "True"
    assert time.time() - (team / "steps" / ("b" * 64)).stat().st_mtime < HOUR
    # The damaged copy, which the repair has put aside, belongs to the first one.
    assert play(two, collect) == "objects steps"
    left = {path.name[:7] for path in (team / "objects").iterdir()}
    assert left == {other[:7], ".aside-"}
    assert play(two, collect) == ""
    assert play(one, collect) == "objects"
    assert [path.name for path in (team / "objects").iterdir()] == [other]
