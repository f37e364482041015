"""Folders that are stores or not, stores of earlier releases, and commands that only read."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ratchet.errors import DamagedError, StoreError
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.backend import FORMAT
from ratchet.orchestrator.store.backend import FORMAT_NAME as NAME
from ratchet.orchestrator.store.lease import Lease, Leases
from ratchet.orchestrator.version import VERSION

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
"""`store-<format>`: a store that the first release with this format wrote, with the results of a small recipe."""

STEP = "a" * 64

LOOKING = [("status",), ("report",), ("verify",), ("gc",), ("plan", "quickstart")]

WRITING = [("run", "quickstart"), ("gc", "--yes")]


def describe_tree(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Map each path to its mode, its modification time and its content."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, content)
    return found


def commit_once(store: Store) -> str:
    with Leases(store, "run") as leases:
        lease = leases.acquire(STEP)
        assert isinstance(lease, Lease)
        staging = store.staging(STEP, lease.attempt)
        (staging / "y.txt").write_text("y")
        return lease.commit(staging, Result({}), {}, {"name": "y", "seconds": 1.0}).manifest


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a result and a finished run."""
    made = Store.open(tmp_path / "store")
    commit_once(made)
    run_log = RunLog.begin(
        made, "toy", {"command": "ratchet run toy", "parameters": {}, "versions": {}, "doc": ""}
    )
    run_log.write("plan.json", {"recipe": "toy", "steps": []})
    run_log.event("end", None, failures={}, interrupted=False)
    (run_log.folder / "report.md").write_text("# toy\n")
    return made.root


@pytest.mark.parametrize("made", sorted(FIXTURES.glob("store-*")), ids=lambda path: path.name)
def test_stores_of_earlier_releases_are_read_and_continued(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "store"
    shutil.copytree(made, root)
    for command in ("status", "report", "verify"):
        assert main([command, "--store", str(root)]) == 0, capsys.readouterr()
    shown = capsys.readouterr().out
    assert "toy" in shown
    assert "4 results in 4 objects" in shown
    assert "no damage" in shown
    opened = Store.open(root)
    steps = [path.name for path in (root / "steps").iterdir()]
    commits = [commit for step in steps if (commit := opened.lookup(step)) is not None]
    assert {commit.record["name"] for commit in commits} == {"a", "b", "c", "other"}
    totals = {}
    for commit in commits:
        assert list(opened.path(commit.manifest, full=True).glob("*.txt"))
        totals[commit.record["name"]] = opened.manifest(commit.manifest).result["metrics"]["total"]
    assert totals == {"a": 1, "b": 3, "c": 7, "other": 3}
    commit_once(opened)
    assert main(["gc", "--store", str(root), "--yes"]) == 0
    assert main(["verify", "--store", str(root)]) == 0
    assert "5 results" in capsys.readouterr().out


def test_this_releases_format_has_a_fixture(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store")
    assert json.loads((store.root / NAME).read_text()) == {"format": FORMAT, "ratchet": VERSION}
    assert (FIXTURES / f"store-{FORMAT}").is_dir(), (
        "write a fixture of the new format, and keep the old ones"
    )


@pytest.mark.parametrize("command", [*LOOKING, *WRITING], ids=" ".join)
def test_a_newer_store_is_refused_by_name_and_left_alone(
    store: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (store / NAME).write_text(json.dumps({"format": FORMAT + 1, "ratchet": "9.8.7"}))
    before = describe_tree(store)
    assert main([*command, "--store", str(store)]) == 2
    shown = capsys.readouterr().err
    assert f"format {FORMAT + 1} of Ratchet 9.8.7 given" in shown
    assert "upgrade Ratchet" in shown
    assert "repair" not in shown
    assert describe_tree(store) == before


def test_a_format_file_that_is_none_is_named(store: Path) -> None:
    (store / NAME).write_text("")
    with pytest.raises(DamagedError, match=r"FORMAT: 0 bytes that are not a store's format"):
        Store.open(store)


@pytest.mark.parametrize("command", [*LOOKING, *WRITING, ("sweep", "quickstart")], ids=" ".join)
def test_a_folder_that_is_no_store_is_refused_and_left_alone(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """The folders of a git repository have the names of a store's."""
    folder = tmp_path / "repository.git"
    for name in ("objects/ab", "refs", "runs"):
        (folder / name).mkdir(parents=True)
    (folder / "objects/ab/cdef").write_text("x")
    (folder / "HEAD").write_text("ref: refs/heads/main\n")
    os.utime(folder / "objects/ab", (1e9, 1e9))
    before = describe_tree(folder)
    more = ["--space", "space.yaml", "--metric", "x"] if command[0] == "sweep" else []
    assert main([*command, *more, "--store", str(folder)]) == 2
    assert f"{folder}:" in capsys.readouterr().err
    assert describe_tree(folder) == before


@pytest.mark.parametrize(
    "command", [("status",), ("report",), ("verify",), ("gc",), ("gc", "--yes")], ids=" ".join
)
def test_a_store_that_is_not_there_is_not_created(
    tmp_path: Path, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "typo" / "store"
    assert main([*command, "--store", str(missing)]) == 2
    assert "no store there" in capsys.readouterr().err
    assert not missing.parent.exists()


def test_a_plan_without_a_store_creates_none(tmp_path: Path) -> None:
    missing = tmp_path / "store"
    assert main(["plan", "quickstart", "--store", str(missing)]) == 0
    assert not missing.exists()


@pytest.mark.parametrize("command", LOOKING, ids=" ".join)
def test_looking_writes_nothing(store: Path, command: tuple[str, ...]) -> None:
    before = describe_tree(store)
    assert main([*command, "--store", str(store)]) == 0
    assert describe_tree(store) == before


def test_a_newer_fingerprint_or_manifest_is_not_called_damage(store: Path) -> None:
    opened = Store.open(store)
    end = store / "steps" / STEP / "attempts" / "1" / "end"
    document = json.loads(end.read_text())
    document["commit"]["fingerprint"]["schema"] = 99
    end.write_text(json.dumps(document))
    with pytest.raises(StoreError, match=r"schema of a fingerprint 99 given; .*upgrade") as caught:
        opened.lookup(STEP)
    assert not isinstance(caught.value, DamagedError)


def test_fields_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    commit_once(store)
    expected = store.lookup(STEP)
    end = tmp_path / "steps" / STEP / "attempts" / "1" / "end"
    value = json.loads(end.read_text())
    end.write_text(json.dumps(value | {"commit": value["commit"] | {"later": 1}}))
    assert store.lookup(STEP) == expected
    with Leases(store, "again") as leases:
        assert leases.acquire(STEP) == expected
    del value["commit"]["manifest"]
    end.write_text(json.dumps(value))
    with pytest.raises(DamagedError, match="'manifest' is missing"):
        store.lookup(STEP)
