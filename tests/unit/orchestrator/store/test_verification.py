"""Results that were changed: every file of an object is accounted for, when it is used and by `ratchet verify`."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import damage
import pytest

from ratchet.errors import CanonicalError, DamagedError, StoreError
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.store import Commit, Store
from ratchet.orchestrator.store.lease import Lease, Leases
from ratchet.orchestrator.store.manifest import check_safe


def commit(
    store: Store, name: str, files: dict[str, str], metrics: dict[str, float] | None = None
) -> Commit:
    with Leases(store, "run") as leases:
        lease = leases.acquire(name * 64)
        assert isinstance(lease, Lease)
        staging = store.staging(lease.step_id, lease.attempt)
        for path, text in files.items():
            (staging / path).parent.mkdir(parents=True, exist_ok=True)
            (staging / path).write_text(text)
        return lease.commit(staging, Result(metrics or {}), {}, {"name": name, "seconds": 1.0})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.open(tmp_path / "store")
    commit(made, "a", {f"part/{i}.parquet": str(i) for i in range(20)})
    commit(made, "b", {"x.txt": "x"})
    return made


@pytest.fixture
def folder(store: Store) -> Path:
    found = store.lookup("a" * 64)
    assert found is not None
    return store.path(found.manifest)


def test_objects_are_read_only(folder: Path) -> None:
    paths = [folder, *folder.rglob("*")]
    assert len(paths) > 20
    assert not any(
        path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) for path in paths
    )


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (lambda folder: damage.change(folder / "part/3.parquet", "4"), "part/3.parquet: content"),
    (
        lambda folder: damage.change(folder / "part/3.parquet", "33"),
        "part/3.parquet: 2 bytes; expected 1",
    ),
    (lambda folder: damage.remove(folder / "part/3.parquet"), "part/3.parquet: missing"),
    (lambda folder: damage.add(folder / "part/99.parquet"), "part/99.parquet: not in the manifest"),
    (lambda folder: damage.add(folder / "part/.hidden"), "part/.hidden: not in the manifest"),
    (lambda folder: damage.change(folder / "MANIFEST.json", "{}"), "MANIFEST.json: not a manifest"),
    (
        lambda folder: damage.change(folder / "MANIFEST.json", "[" * 100_000),
        "MANIFEST.json: not a manifest",
    ),
]


@pytest.mark.parametrize(("harm", "said"), DAMAGES, ids=[said for _, said in DAMAGES])
def test_a_changed_object_is_named_and_nothing_is_mutated(
    store: Store,
    folder: Path,
    harm: Callable[[Path], None],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["verify", "--store", str(store.root)]) == 0
    assert "2 results in 2 objects; 21 files read" in capsys.readouterr().out
    harm(folder)
    with pytest.raises(DamagedError) as caught:
        Store.open(store.root).path(folder.name, full=True)
    assert said in str(caught.value)
    before = {path: path.lstat() for path in store.root.rglob("*")}
    assert main(["verify", "--store", str(store.root)]) == 1
    shown = capsys.readouterr().out
    assert said in shown
    assert "step a" in shown
    assert "--repair" in shown
    assert "1 problem" in shown
    assert {path: path.lstat().st_mtime_ns for path in store.root.rglob("*")} == {
        path: status.st_mtime_ns for path, status in before.items()
    }


NAMES = [
    "a\0b",
    "a\nb",
    "a\x1b]0;x\x07",
    "part/MANIFEST.json/../x",
    "/x",
    "a\\b",
    "MANIFEST.json",
    "",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_that_leave_the_folder_are_refused(name: str) -> None:
    with pytest.raises(StoreError, match="artifact file") as caught:
        check_safe(name, "MANIFEST.json")
    assert name.isprintable() or name not in str(caught.value), "the message is printable"


def test_absurdly_nested_results_are_refused(store: Store) -> None:
    nested: list[object] = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(CanonicalError, match="more than 100 levels of nesting"):
        commit(store, "c", {"x": "x"}, {"deep": nested})  # type: ignore[dict-item]
