"""Published folders: every kind of damage is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.orchestrator.job_interface.digests import NAME, find_damage, hash_files, publish


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fresh = tmp_path / "unfinished"
    (fresh / "engine").mkdir(parents=True)
    for number in range(5):
        (fresh / f"engine/{number}.pt").write_bytes(bytes(range(100 + number)))
    (fresh / "empty").touch()
    publish(fresh, tmp_path / "made", hash_files(fresh))
    assert not fresh.exists()
    return tmp_path / "made"


def test_an_intact_folder_has_no_damage(folder: Path) -> None:
    assert find_damage(folder) == ""


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (flip, "does not match its digest"),
        (truncate, "102 bytes instead of 103"),
        (Path.unlink, "is missing"),
    ],
)
def test_damage_is_found_with_the_file(
    folder: Path, damage: Callable[[Path], None], said: str
) -> None:
    damage(folder / "engine/3.pt")
    assert find_damage(folder) == f"engine/3.pt {'has ' if 'bytes' in said else ''}{said}"
    found = [find_damage(folder, rank, 2) for rank in range(2)]
    assert sorted(found)[0] == "", "each worker verifies its own share"
    assert sorted(found)[1] == find_damage(folder)


def test_a_folder_without_readable_digests_is_damaged(folder: Path) -> None:
    for content in (b"", b"[1]", b'{"engine/3.pt": 7}', b"\xff\xfe"):
        (folder / NAME).write_bytes(content)
        assert find_damage(folder) == f"{NAME} cannot be read"
    (folder / NAME).unlink()
    assert find_damage(folder) == f"{NAME} is missing"
    assert find_damage(folder / "engine/3.pt") == f"{NAME} is missing"


def test_a_folder_is_replaced_as_a_whole(folder: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "again"
    fresh.mkdir()
    (fresh / "other").write_text("x")
    publish(fresh, folder, hash_files(fresh))
    assert sorted(path.name for path in folder.iterdir()) == [NAME, "other"]
    assert find_damage(folder) == ""
