"""Files that go from one machine to another through a bucket, on a real S3 server; each machine has its own cache."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from s3_server import KEYS, serve_s3
from store_contents import made_of

from ratchet.orchestrator import gc
from ratchet.orchestrator.job_interface import Context, Job, Result
from ratchet.orchestrator.job_interface.shared_files import SharedFiles
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.step import step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import OpenRun

STEP = "ab" * 32


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with serve_s3() as port:
        yield port


@pytest.fixture
def at(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Store]:
    """Opens the test's prefix as from a machine with a cache of its own."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server}")

    def opened(machine: str) -> Store:
        monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / machine))
        return Store.open(f"s3://kept/{tmp_path.name}")

    return opened


@dataclass(frozen=True)
class Config:
    number: int = 0


@dataclass(frozen=True)
class Inputs:
    before: Path | None = None


def do_nothing(context: Context, config: Config, inputs: Inputs) -> Result:
    return Result()


JOB = Job("nothing", Config, Inputs, do_nothing)


def read(folder: Path) -> dict[str, bytes]:
    """Map the relative path of each file below a folder to its content."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_folder_arrives_whole_and_only_what_changed_travels(
    at: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = at("one"), at("two")
    here, there = one.work(STEP), two.work(STEP)
    (here / "deep" / "deeper").mkdir(parents=True)
    (here / "deep" / "deeper" / "large").write_bytes(bytes(range(256)) * 150_000)  # three requests
    (here / "deep" / "empty").touch()
    (here / "record").write_text("first")
    (here / ".record.tmp").write_text("half")
    one.backend.send(here)
    two.backend.fetch(there)
    expected = read(here)
    del expected[".record.tmp"]
    assert read(there) == expected
    assert one.backend.list_sent(here) == two.backend.list_sent(there) == ["deep", "record"]
    (there / "record").write_text("second")
    (there / "deep" / "empty").unlink()
    two.backend.send(there / "record")
    travelled = []
    for store in (one, two):
        fetch = store.backend._fetch  # type: ignore[attr-defined]
        monkeypatch.setattr(
            store.backend,
            "_fetch",
            lambda key, *rest, fetch=fetch: travelled.append(key) or fetch(key, *rest),
        )
    one.backend.fetch(here)
    two.backend.fetch(there)
    assert (here / "record").read_text() == "second"
    assert (there / "deep" / "empty").exists(), "what is missing here comes again"
    assert [key.rsplit("/", 1)[1] for key in travelled] == ["record", "empty"]


def test_a_single_file_and_another_name(at: Callable[[str], Store]) -> None:
    one, two = at("one"), at("two")
    here, there = one.work(STEP), two.work(STEP)
    (here / "own").mkdir()
    (here / "own" / "part-1").write_text("1")
    one.backend.send(here / "own", here / "whole")
    two.backend.fetch(there / "whole" / "part-1")
    assert read(there) == {"whole/part-1": b"1"}
    two.backend.fetch(there / "own")
    two.backend.fetch(there / "nobody" / "sent")
    assert read(there) == {"whole/part-1": b"1"}


def test_a_file_is_sent_once(at: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch) -> None:
    store = at("one")
    file = store.work(STEP) / "record"
    file.write_text("first")
    sent = []
    put = store.backend._send  # type: ignore[attr-defined]
    monkeypatch.setattr(
        store.backend, "_send", lambda path, key: sent.append(path.read_text()) or put(path, key)
    )
    store.backend.send(file)
    store.backend.send(file)
    file.write_text("other")
    store.backend.send(file)
    store.backend.remove(f"steps/{STEP}/work/record")  # by `gc` on another machine
    store.backend.send(file)
    assert sent == ["first", "other", "other"]


def test_what_is_discarded_is_gone_for_all(at: Callable[[str], Store]) -> None:
    one, two = at("one"), at("two")
    for store in (one, two):
        (store.work(STEP) / "shards").mkdir()
        (store.work(STEP) / "shards" / f"{store.root.parent.name}").write_text("x")
        store.backend.send(store.work(STEP) / "shards")
    assert len(two.backend.list_sent(two.work(STEP) / "shards")) == 2
    one.backend.discard(one.work(STEP) / "shards")
    assert not (one.work(STEP) / "shards").exists()
    assert two.backend.list_sent(two.work(STEP) / "shards") == []
    # The same path again: nothing says that it was sent.
    (one.work(STEP) / "shards").mkdir()
    (one.work(STEP) / "shards" / "one").write_text("x")
    one.backend.send(one.work(STEP) / "shards")
    assert two.backend.list_sent(two.work(STEP) / "shards") == ["one"]
    one.clear(STEP)
    assert two.backend.list_sent(two.work(STEP)) == []


def test_the_part_of_an_object_that_a_step_reads_arrives_verified(
    at: Callable[[str], Store],
) -> None:
    one, two = at("one"), at("two")
    commit = made_of(one, STEP, {"model/weights": "heavy", "tables/a": "light"})
    sent: SharedFiles = pickle.loads(pickle.dumps(two.backend))
    folder = two.local("objects", commit.manifest)
    sent.fetch(folder / "tables")
    assert read(folder) == {"tables/a": b"light"}
    sent.fetch(folder / "model" / "weights")
    assert (folder / "model" / "weights").read_bytes() == b"heavy"
    assert (folder / "model" / "weights").stat().st_mode & 0o222 == 0


def test_a_users_files_follow_their_content(at: Callable[[str], Store], tmp_path: Path) -> None:
    one, two = at("one"), at("two")
    old, new = tmp_path / "old", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "data.csv").write_text("a")
    place = one.place_source(old / "data.csv", "1" * 64)
    (old / "data.csv").write_text("changed later")
    place = one.place_source(new / "data.csv", "1" * 64)
    assert place.read_text() == "a"
    there = two.local(*place.relative_to(one.root).parts)
    two.backend.fetch(there)
    assert (there.read_text(), there.name) == ("a", "data.csv")
    # A machine that has fetched a copy may be that of the next driver.
    assert two.place_source(new / "data.csv", "1" * 64) == there
    whole = one.place_source(new, "2" * 64)
    two.backend.fetch(two.local(*whole.relative_to(one.root).parts))
    assert read(two.local("sources", "2" * 32)) == {"new/data.csv": b"a"}


def test_copies_of_sources_go_when_nobody_runs(
    at: Callable[[str], Store], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = at("one")
    (tmp_path / "data.csv").write_text("a")
    place = store.place_source(tmp_path / "data.csv", "3" * 64)

    def collect(hours: float) -> list[str]:
        now = time.time() + hours * 3600
        monkeypatch.setattr(gc, "time", SimpleNamespace(time=lambda: now))
        garbage = gc.find_garbage(store, keep=5, grace=3600)
        gc.remove_garbage(garbage)
        return [item.kind for item in garbage]

    assert collect(0) == []
    with OpenRun(store) as run:
        log = RunLog.begin(store, "toy", {})
        log.write("plan.json", {"recipe": "toy", "steps": []})
        run.set_folder(log.folder)
        assert collect(2) == []
    assert collect(2) == ["sources"]
    store.place_source(tmp_path / "data.csv", "3" * 64)
    two = at("two")
    there = two.local(*place.relative_to(store.root).parts)
    two.backend.fetch(there)
    assert there.read_text() == "a"


def test_a_large_input_is_not_downloaded_to_divide_its_work(at: Callable[[str], Store]) -> None:
    first = step("first", JOB)
    steps = [first, step("second", JOB, before=first["rows"])]
    store = at("one")
    files = {"rows/shard": "x" * 1000, "weights": "y" * 5000}
    made_of(store, Plan(steps, store).steps["first"].step_id, files)
    store = at("two")
    plan = Plan(steps, store)
    small = plan.inputs("second", verified=False, most_bytes=999)
    assert small == Inputs(None)
    manifest = plan.steps["first"].manifest
    assert manifest is not None
    folder = store.local("objects", manifest.digest)
    assert not (folder / "rows").exists()
    assert plan.inputs("second", verified=False, most_bytes=1000) == Inputs(folder / "rows")
    assert read(folder / "rows") == {"shard": b"x" * 1000}
    assert not (folder / "weights").exists()
