"""The store under races, damage and a full disk; real processes throughout."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import damage
import pytest
from one_step import STEP, commit_once

from ratchet.errors import DamagedError, LeaseLost, StoreError, describe
from ratchet.jobs.synthetic import make_countdown
from ratchet.orchestrator.canonical_json import digest
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.run_log import RunLog, read_last_step_ids
from ratchet.orchestrator.step import step
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.lease import HeldByOther, Lease, Leases
from ratchet.orchestrator.store.manifest import Manifest

ROOT = Path(__file__).resolve().parents[4]
RACE = """
import sys, time
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.store.lease import HeldByOther, Leases
from ratchet.orchestrator.store import Commit, Store

root, name, start = sys.argv[1], sys.argv[2], float(sys.argv[3])
store = Store.open(root)
with Leases(store, name) as leases:
    time.sleep(max(0, start - time.time()))
    for step in range(20):
        key = f"{step:064d}"
        while not isinstance(lease := leases.acquire(key), Commit):
            if isinstance(lease, HeldByOther):
                time.sleep(0.005)
                continue
            staging = store.staging(key, lease.attempt)
            (staging / "who.txt").write_text(name)
            lease.commit(staging, Result({}), {}, {"name": name})
            print(step)
"""


@pytest.mark.slow
def test_eight_processes_commit_each_step_exactly_once(tmp_path: Path) -> None:
    Store.open(tmp_path)
    start = str(time.time() + 2.0)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path), f"r{i}", start],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for i in range(8)
    ]
    done = [racer.communicate(timeout=100)[0].split() for racer in racers]
    assert all(racer.returncode == 0 for racer in racers)
    assert sorted(int(step) for steps in done for step in steps) == list(range(20))


def test_an_attempt_that_was_taken_over_can_never_commit(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    sleeper = Leases(store, "sleeper")  # its heartbeat never starts: a process that was stopped
    lease = sleeper.acquire(STEP)
    assert isinstance(lease, Lease)
    staging = store.staging(STEP, lease.attempt)
    (staging / "stale.txt").write_text("stale")
    with Leases(store, "other", ttl=0.05) as others:
        assert isinstance(others.acquire(STEP), HeldByOther)
        time.sleep(0.1)
        second = others.acquire(STEP)
        assert isinstance(second, Lease)
        assert second.attempt == 2
        with pytest.raises(LeaseLost, match="taken over by run other"):
            lease.commit(staging, Result({}), {}, {})
        assert store.lookup(STEP) is None
        fresh = store.staging(STEP, second.attempt)
        (fresh / "new.txt").write_text("new")
        made = second.commit(fresh, Result({}), {}, {})
    assert store.lookup(STEP) == made


@pytest.mark.slow
def test_a_live_owner_keeps_its_lease(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with Leases(store, "owner", ttl=0.6) as owner, Leases(store, "other", ttl=0.6) as other:
        assert isinstance(owner.acquire(STEP), Lease)
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            held = other.acquire(STEP)
            assert isinstance(held, HeldByOther)
            assert "run owner" in held.owner
            time.sleep(0.1)


def test_a_pid_that_was_used_again_is_another_process(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    lease = Leases(store, "gone").acquire(STEP)
    assert isinstance(lease, Lease)
    path = tmp_path / "steps" / STEP / "attempts" / "1" / "lease"
    owner = json.loads(path.read_text())
    path.write_text(json.dumps({**owner, "pid_started": "1"}))
    assert isinstance(Leases(store, "new").acquire(STEP), Lease)


def test_a_living_owner_whom_the_system_hides_keeps_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on systems whose /proc is mounted with hidepid, where the owner is another user."""
    store = Store.open(tmp_path)
    with subprocess.Popen(["sleep", "100"]) as other:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: other.pid)
            assert isinstance(Leases(store, "other").acquire(STEP), Lease)
        read_text = Path.read_text

        def hide(path: Path) -> str:
            if path == Path(f"/proc/{other.pid}/stat"):
                raise FileNotFoundError
            return read_text(path)

        monkeypatch.setattr(Path, "read_text", hide)
        assert isinstance(Leases(store, "new").acquire(STEP), HeldByOther)
        other.kill()
        other.wait()
        assert isinstance(Leases(store, "new").acquire(STEP), Lease)


def test_a_part_is_not_touched_by_a_change_beside_it(tmp_path: Path) -> None:
    first = commit_once(Store.open(tmp_path / "1"), text="y")
    second = commit_once(Store.open(tmp_path / "2"), text="z")
    manifests = [
        Store.open(tmp_path / str(i)).manifest(c.manifest) for i, c in ((1, first), (2, second))
    ]
    assert first.manifest != second.manifest
    assert manifests[0].part_digest("part") == manifests[1].part_digest("part")
    assert manifests[0].part_digest(None) != manifests[1].part_digest(None)
    with pytest.raises(StoreError, match=r"expected one of .*part"):
        manifests[0].part_digest("parts")


@pytest.mark.parametrize("name", ["../out.txt", "/etc/x", "a/../../b", "MANIFEST.json", "a\nb"])
def test_a_manifest_cannot_name_a_file_outside_its_folder(name: str) -> None:
    document = {
        "schema": 1,
        "result": {},
        "files": [{"path": name, "bytes": 1, "sha256": "0" * 64}],
    }
    with pytest.raises(StoreError, match="leaves its folder or is reserved"):
        Manifest.load(json.dumps(document).encode(), digest(document), "object")


def test_links_in_an_artifact_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    with pytest.raises(StoreError, match="link"):
        Manifest.build(tmp_path, {})


def test_nan_is_refused_before_commit(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    with Leases(store, "run") as leases:
        lease = leases.acquire(STEP)
        assert isinstance(lease, Lease)
        with pytest.raises(TypeError, match=r"metrics.loss"):
            lease.commit(store.staging(STEP, 1), Result({"loss": float("nan")}), {}, {})
    assert store.lookup(STEP) is None


def test_a_full_disk_is_named_and_nothing_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Leases(store, "run") as leases:
        lease = leases.acquire(STEP)
        assert isinstance(lease, Lease)
        staging = store.staging(STEP, 1)
        (staging / "x").write_text("x")
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space left") as error:
                lease.commit(staging, Result({}), {}, {})
        assert "free some (`ratchet gc` lists what can be removed)" in describe(error.value)
        assert store.lookup(STEP) is None
        lease.fail("full")
    assert commit_once(store).attempt == 2


def test_a_torn_pointer_is_damage_not_a_miss(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    commit_once(store)
    (tmp_path / "steps" / STEP / "attempts" / "1" / "end").write_text("{")
    with pytest.raises(DamagedError, match="attempts/1/end"):
        store.lookup(STEP)


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="expected a folder"):
        Store.open(tmp_path / "file" / "store")


def test_an_attempt_from_before_a_withdrawal_can_never_commit(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    sleeper = Leases(store, "sleeper")
    stale = sleeper.acquire(STEP)
    assert isinstance(stale, Lease)
    with Leases(store, "other", ttl=0.05) as others:
        assert isinstance(others.acquire(STEP), HeldByOther)
        time.sleep(0.1)
        second = others.acquire(STEP)
        assert isinstance(second, Lease)
        fresh = store.staging(STEP, second.attempt)
        (fresh / "y.txt").write_text("y")
        damaged = second.commit(fresh, Result({}), {}, {})
        damage.change(store.path(damaged.manifest) / "y.txt", "z")
        store.withdraw(damaged)
        assert store.lookup(STEP) is None
        third = others.acquire(STEP)
        assert isinstance(third, Lease)
        assert third.attempt > second.attempt
        for old in (stale, second):
            staging = store.staging(STEP, old.attempt)
            with pytest.raises(LeaseLost):
                old.commit(staging, Result({}), {}, {})
        assert store.lookup(STEP) is None


def test_two_that_withdraw_one_result_at_once_withdraw_it_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    damaged = commit_once(store)
    store.withdraw(damaged)
    again = commit_once(store)
    store.withdraw(damaged)  # by a process that looked before the other withdrew
    assert store.lookup(STEP) == again
    late = Store.open(tmp_path)
    late.lookup = lambda step_id: damaged  # type: ignore[method-assign]
    late.withdraw(damaged)  # it was suspended after its last look
    assert store.lookup(STEP) == again
    store.path(again.manifest, full=True)


def test_what_a_killed_owner_had_decided_is_seen_by_everybody(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    made = commit_once(store)
    assert Store.open(tmp_path).lookup(STEP) == made
    with Leases(store, "next") as leases:
        assert leases.acquire(STEP) == made


def test_a_lease_killed_while_it_was_written_holds_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    (tmp_path / "steps" / STEP / "attempts" / "1").mkdir(parents=True)
    assert store.lookup(STEP) is None
    assert commit_once(store).attempt == 1


def test_the_heartbeat_outlives_a_failing_disk(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    failures = 0
    overwrite = store.overwrite

    def failing(key: str, value: object, *, durable: bool = True) -> None:
        nonlocal failures
        if key.endswith("heartbeat") and failures < 3:
            failures += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        overwrite(key, value, durable=durable)

    store.overwrite = failing  # type: ignore[method-assign]
    with Leases(store, "owner", ttl=0.3) as owner:
        assert isinstance(owner.acquire(STEP), Lease)
        beat = tmp_path / "steps" / STEP / "attempts" / "1" / "heartbeat"
        end = time.monotonic() + 10
        while not beat.exists():
            assert time.monotonic() < end
            time.sleep(0.01)
    assert failures == 3


FULL = """
import resource, signal, sys
from ratchet.errors import describe
from ratchet.orchestrator.store.lease import Leases
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.job_interface import Result

store = Store.open(sys.argv[1])
with Leases(store, "run") as leases:
    lease = leases.acquire("a" * 64)
    staging = store.staging("a" * 64, 1)
    (staging / "x").write_text("x")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # the kernel refuses longer files
    try:
        lease.commit(staging, Result({}), {"config": "long" * 1000}, {})
    except Exception as error:
        print(describe(error))
"""


@pytest.mark.slow
def test_a_pointer_that_the_disk_has_no_room_for_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "attempts/1/end: File too large; expected free space" in done.stdout, done
    store = Store.open(tmp_path)
    assert store.lookup(STEP) is None
    assert commit_once(store).attempt == 2


def test_a_part_that_is_not_there_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    made = commit_once(store)
    assert store.path(made.manifest, "part").is_dir()
    with pytest.raises(StoreError, match=r"'parts' given; expected one of .*part"):
        store.path(made.manifest, "parts")


@pytest.mark.parametrize("text", ["", "other"])
def test_damage_after_a_first_full_look_is_seen_by_the_next(tmp_path: Path, text: str) -> None:
    store = Store.open(tmp_path)
    made = commit_once(store, text="sound")
    folder = store.path(made.manifest, full=True)
    store.path(made.manifest, full=True)
    damage.change(folder / "y.txt", text)
    with pytest.raises(DamagedError, match=r"y\.txt"):
        store.path(made.manifest, full=True)


def test_a_file_is_a_part(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    made = commit_once(store)
    (file,) = (file for file in store.manifest(made.manifest).files if file.path.count("/") == 0)
    assert store.path(made.manifest, file.path).is_file()
    assert store.manifest(made.manifest).part_digest(file.path) != store.manifest(
        made.manifest
    ).part_digest(None)


def test_runs_that_draw_one_id_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *given: "20261124-231100")
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * size)
    RunLog.begin(store, "toy", {})
    with pytest.raises(FileExistsError):
        RunLog.begin(store, "toy", {})


def test_a_plan_on_a_bucket_downloads_what_is_read_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for machine in ("1", "2"):
        monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / machine))
        found.append(Store.open("memory:///store"))
    one, two = found
    two.backend.control = one.backend.control  # type: ignore[attr-defined]
    run = step("made", make_countdown.JOB)
    staging = one.staging(step_id := Plan([run], one).steps["made"].step_id, 1)
    for part in ("tasks", "other"):
        (staging / part).mkdir()
        (staging / part / "x.txt").write_text(part)
    with Leases(one, "run") as leases:
        lease = leases.acquire(step_id)
        assert isinstance(lease, Lease)
        commit = lease.commit(staging, Result({"n": 1}), {"config": {}}, {"seconds": 1.0})
    plan, folder = Plan([run], two), two.local("objects", commit.manifest)
    assert plan.steps["made"].numbers == {"n": 1.0}
    assert [path.name for path in folder.iterdir()] == ["MANIFEST.json"]
    assert plan.path_of(run["tasks"], verified=True) == folder / "tasks"
    assert not (folder / "other").exists()


def test_step_ids_of_newest_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = Store.open(tmp_path), []
    for number, steps in enumerate(
        ({"a": "1", "b": "1", "c": "1"}, {"a": "2", "b": "2"}, {"a": "3", "b": None})
    ):
        run_log = RunLog(store.local("runs", f"2026010{number}-recipe"))
        run_log.folder.mkdir(parents=True)
        run_log.write("about.json", {"recipe": "recipe"})
        run_log.write(
            "plan.json",
            {"steps": [{"name": name, "step_id": step} for name, step in steps.items()]},
        )
    read_steps = RunLog.steps
    monkeypatch.setattr(
        RunLog, "steps", lambda self: (read.append(self.run_id), read_steps(self))[1]
    )
    for names, found, runs in (
        ("", {}, 0),
        ("a", {"a": "3"}, 1),
        ("ab", {"a": "3", "b": "2"}, 2),
        ("ac", {"a": "3", "c": "1"}, 3),
        ("x", {}, 3),
    ):
        read.clear()
        assert read_last_step_ids(store, "recipe", names) == found
        assert len(read) == runs


def test_a_result_shares_no_file_with_the_user(tmp_path: Path) -> None:
    """A job that links the user's file, instead of copying it. Links between its own folders stay."""
    data = tmp_path / "corpus.jsonl"
    data.write_text("row\n")
    store = Store.open(tmp_path / "s")
    with Leases(store, "run") as leases:
        lease = leases.acquire("a" * 64)
        assert isinstance(lease, Lease)
        staging = store.staging("a" * 64, 1)
        os.link(data, staging / "corpus.jsonl")
        os.link(data, staging / "again.jsonl")
        piece = store.work("a" * 64) / "piece"
        piece.write_text("made\n")
        os.link(piece, staging / "piece")
        inode = piece.stat().st_ino
        commit = lease.commit(staging, Result({}), {}, {"seconds": 1})
    data.write_text("new\n")
    assert data.stat().st_mode & 0o200
    made = store.local("objects", commit.manifest)
    assert (made / "corpus.jsonl").read_text() == (made / "again.jsonl").read_text() == "row\n"
    assert (made / "piece").stat().st_ino == inode
    store.verified(commit.manifest, full=True)
