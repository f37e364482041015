"""Folders that cannot be listed, as with other permissions or a stale handle: nothing is left out silently."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.orchestrator.atomic_file import remove_tree, sync_tree
from ratchet.orchestrator.job_interface import Result, Source
from ratchet.orchestrator.job_interface.digests import hash_files, publish
from ratchet.orchestrator.job_interface.source_digest import SourceDigests
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.manifest import Manifest, list_below

READS: dict[str, Callable[[Path], Any]] = {
    "a manifest": lambda folder: Manifest.build(folder, {}),
    "a commit": lambda folder: Store.open(folder.parent / "store").add_object(folder, Result()),
    "digests": hash_files,
    "a checkpoint": lambda folder: publish(folder, folder.parent / "published", {}),
    "a source": lambda folder: SourceDigests(folder.parent / "cache").digest(Source(folder)),
    "sizes": lambda folder: list_below(folder, folder),
    "a sync": sync_tree,
}


@pytest.mark.parametrize("code", [errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any], code: int
) -> None:
    folder = tmp_path / "folder"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "weights").write_text("w")
    (folder / "config").write_text("c")
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path).name == "model":
            raise OSError(code, os.strerror(code), str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        with pytest.raises(OSError, match=os.strerror(code)):
            read(folder)
    remove_tree(folder)


def test_a_folder_without_permissions_is_removed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    folder = tmp_path / "folder"
    (folder / "closed" / "deeper").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path / "outside")
    mode = (tmp_path / "outside").stat().st_mode
    (folder / "closed").chmod(0o300)
    remove_tree(folder)
    assert not folder.exists()
    assert (tmp_path / "outside").stat().st_mode == mode
