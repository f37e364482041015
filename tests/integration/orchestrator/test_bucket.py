"""Stores on object storage: a real S3 server behind a connection with faults."""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command
import pytest
from s3_server import KEYS, serve_s3
from store_contents import list_running_attempts

from ratchet.errors import DamagedError, LeaseLost, StoreError
from ratchet.orchestrator import gc
from ratchet.orchestrator.job_interface import Result
from ratchet.orchestrator.run_log import RunLog
from ratchet.orchestrator.store import Commit, Store, bucket, lease
from ratchet.orchestrator.store.bucket import Bucket
from ratchet.orchestrator.store.lease import Lease, Leases

RECIPE = '''
import os
from dataclasses import dataclass
from pathlib import Path
from ratchet.orchestrator.job_interface import Job, Result
from ratchet.orchestrator.step import Row, Summary, step

@dataclass(frozen=True)
class Config:
    number: int = 0

@dataclass(frozen=True)
class Inputs:
    before: Path | None = None

def run(context, config, inputs):
    (context.out / "model").mkdir()
    text = (inputs.before / "text.txt").read_text() if inputs.before else ""
    (context.out / "model" / "text.txt").write_text(f"{text}{config.number} ")
    (context.out / "model" / "weights.bin").write_bytes(bytes([config.number]) * 3_000_000)
    return Result({"value": config.number})

JOB = Job("fit", version=1, config=Config, inputs=Inputs, run=run)

def toy(*, last: int = 3) -> Summary:
    """Steps in a row."""
    made = None
    for number in range(1, last + 1):
        made = step(f"fit{number}", JOB, number=number, before=made["model"] if made else None)
    return Summary([Row("fit", {"value": made.metric("value")})])
'''


ERRORS = {"409": "ConditionalRequestConflict", "500": "InternalError", "503": "SlowDown"}


class Faulty:
    """Hands requests on to a server; what `fault` says of one happens to it."""

    def __init__(self, target: int, fault: Callable[[int, str, str], str]) -> None:
        self.fault, self.count, self.seen, lock = fault, 0, list[str](), threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                with lock:
                    outer.count += 1
                    what = outer.fault(outer.count, self.command, self.path)
                    outer.seen.append(f"{self.command} {self.path} {what}".strip())
                length = int(self.headers.get("Content-Length") or 0)
                if what == "cut":
                    self.rfile.read(length // 2)
                    self.connection.close()
                    self.close_connection = True
                    return
                body = self.rfile.read(length)
                if what in ERRORS:
                    self.answer(
                        int(what), {}, f"<Error><Code>{ERRORS[what]}</Code></Error>".encode()
                    )
                    return
                if what == "slow":
                    time.sleep(1.5)
                if what == "hang":
                    time.sleep(6)
                ahead = http.client.HTTPConnection("127.0.0.1", target)
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower() != "connection"
                }
                ahead.request(self.command, self.path, body, headers)
                answer = ahead.getresponse()
                found = answer.read()
                if what in ("lost", "hang"):  # done, but nobody is told
                    self.connection.close()
                    self.close_connection = True
                    return
                self.answer(answer.status, dict(answer.getheaders()), found)

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                length = headers.pop("Content-Length", None)
                for name, value in headers.items():
                    if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                        self.send_header(name, value)
                self.send_header(
                    "Content-Length", str(len(body)) if self.command != "HEAD" else length or "0"
                )
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with serve_s3() as port:
        yield port


@pytest.fixture
def at(server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Store]:
    """Opens the test's prefix as from a machine with a cache of its own, over a connection of its own."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)

    def opened(machine: str, port: int | None = None) -> Store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port or server}")
        monkeypatch.setenv("RATCHET_CACHE", str(tmp_path / machine))
        return Store.open(f"s3://kept/{tmp_path.name}")

    return opened


def bucket_of(store: Store) -> Bucket:
    assert isinstance(store.backend, Bucket)
    return store.backend


def made(store: Store, step_id: str, text: str = "text") -> Commit:
    """A step's result, committed."""
    with Leases(store, "run") as leases:
        held = leases.acquire(step_id)
        assert isinstance(held, Lease)
        staging = store.staging(step_id, held.attempt)
        (staging / "model").mkdir()
        (staging / "model" / "text.txt").write_text(text)
        (staging / "model" / "weights.bin").write_bytes(b"w" * 1_000_000)
        (staging / "rows.parquet").write_bytes(b"rows")
        return held.commit(staging, Result({"value": 1}), {}, {"name": "fit", "seconds": 1.0})


def test_what_one_machine_commits_another_finds_whole(at: Callable[..., Store]) -> None:
    commit = made(at("one"), "aa" * 32)
    other = at("other")
    assert other.lookup("aa" * 32) == other.use("aa" * 32) == commit
    model = other.path(commit.manifest, "model", full=True)
    assert sorted(path.name for path in model.iterdir()) == ["text.txt", "weights.bin"]
    assert (model / "text.txt").read_text() == "text"
    assert not (model.parent / "rows.parquet").exists(), "what nobody asked for is not brought"
    assert other.path(commit.manifest, full=True).joinpath("rows.parquet").read_bytes() == b"rows"
    assert list_running_attempts(other) == []
    assert at("third").lookup("bb" * 32) is None


def test_a_lease_is_one_machines_and_a_stale_one_cannot_commit(
    at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_machine_id", lambda: threading.current_thread().name)
    one, two, step_id = at("one"), at("two"), "cc" * 32
    with Leases(one, "first", ttl=600) as first, Leases(two, "second", ttl=0.0) as second:
        held = first.acquire(step_id)
        assert isinstance(held, Lease)
        assert list_running_attempts(two) == [step_id]
        monkeypatch.setattr(lease, "_machine_id", lambda: "elsewhere")
        assert isinstance(second.acquire(step_id), lease.HeldByOther)
        time.sleep(0.05)
        taken = second.acquire(step_id)
        assert isinstance(taken, Lease)
        assert taken.attempt == 2
        staging = one.staging(step_id, 1)
        (staging / "text.txt").write_text("late")
        with pytest.raises(LeaseLost, match="taken over by run second"):
            held.commit(staging, Result(), {}, {})
    assert at("three").lookup(step_id) is None


@pytest.mark.parametrize(
    "fault", ["500", "503", "cut", "lost", "slow", pytest.param("hang", marks=pytest.mark.soak)]
)
def test_faults_on_the_way_cost_time_and_nothing_else(
    at: Callable[..., Store], server: int, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bucket.PATIENCE["client"], "timeout", timedelta(seconds=3))
    way = Faulty(server, lambda number, command, path: fault if number % 4 == 3 else "")
    commit = made(at("one", way.port), "dd" * 32, fault)
    assert any(seen.endswith(fault) for seen in way.seen)
    whole = at("other").path(commit.manifest, full=True)
    assert (whole / "model" / "text.txt").read_text() == fault
    assert commit.attempt == 1, "our own lease, answered late, is no other's"
    back = at("third", way.port).path(commit.manifest, full=True)
    assert (back / "model" / "weights.bin").read_bytes() == b"w" * 1_000_000


def test_two_machines_share_a_bucket_over_bad_lines(
    at: Callable[..., Store], server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer may be late, lost, an error, or a conflict of two conditional requests."""
    monkeypatch.setattr(lease, "_machine_id", lambda: threading.current_thread().name)
    steps = [f"{number:02x}" * 32 for number in range(8)]
    found: dict[str, list[Commit]] = {"one": [], "two": []}

    def find_fault(draw: random.Random, command: str, path: str) -> str:
        kinds = ["503", "500", "lost", "slow"]
        if command == "PUT" and path.endswith(("/lease", "/end")):
            kinds.append("409")
        return draw.choice(kinds) if draw.random() < 0.1 else ""

    def work(machine: str, store: Store) -> None:
        with Leases(store, machine, ttl=600) as leases:
            for step_id in steps:
                held = leases.acquire(step_id)
                while isinstance(held, lease.HeldByOther):
                    time.sleep(0.1)
                    held = leases.acquire(step_id)
                if isinstance(held, Lease):
                    staging = store.staging(step_id, held.attempt)
                    (staging / "text.txt").write_text(f"{machine} {step_id}")
                    held = held.commit(staging, Result({}), {}, {"seconds": 1.0})
                found[machine].append(held)

    threads = []
    for seed, machine in enumerate(found):
        draw = random.Random(seed)
        way = Faulty(
            server, lambda number, command, path, draw=draw: find_fault(draw, command, path)
        )
        store = at(machine, way.port)
        threads.append(threading.Thread(target=work, args=(machine, store), name=machine))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    third = at("three")
    whole = [third.lookup(step_id) for step_id in steps]
    for machine, commits in found.items():
        assert [commit.manifest for commit in commits] == [one and one.manifest for one in whole], (
            machine
        )
    texts = [(third.path(one.manifest, full=True) / "text.txt").read_text() for one in whole if one]
    assert {text.split()[0] for text in texts} == {"one", "two"}, "both have worked"


def test_an_upload_that_was_cut_off_goes_on(
    at: Callable[..., Store], server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(bucket.PATIENCE["retry"], "max_retries", 1)
    gone = Faulty(server, lambda number, command, path: "cut" if "weights.bin" in path else "")
    broken = at("one", gone.port)
    with pytest.raises(
        ConnectionError, match=r"weights.bin: .* expected the object storage to answer"
    ):
        made(broken, "ee" * 32)
    assert at("other").lookup("ee" * 32) is None, "nothing of it can be found"
    whole = Faulty(server, lambda number, command, path: "")
    commit = made(at("one", whole.port), "ee" * 32)
    sent = [seen for seen in whole.seen if seen.startswith("PUT") and "/objects/" in seen]
    assert not any("text.txt" in seen for seen in sent), "what had arrived is not sent again"
    assert any("weights.bin" in seen for seen in sent)
    at("other").path(commit.manifest, full=True)


def test_changed_object_is_made_anew(at: Callable[..., Store]) -> None:
    import obstore

    store = at("one")
    commit = made(store, "ff" * 32)
    obstore.put(store.backend.control, f"objects/{commit.manifest}/model/text.txt", b"tixt")
    other = at("other")
    with pytest.raises(
        DamagedError, match=r"model/text.txt: content .* `ratchet run ... --repair`"
    ):
        other.path(commit.manifest)
    other.withdraw(commit)
    assert other.lookup("ff" * 32) is None
    again = made(other, "ff" * 32)
    assert again.manifest == commit.manifest
    at("third").path(again.manifest, full=True)


def test_two_repairs_at_once_leave_the_good_result(
    at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    one, two, step_id = at("one"), at("two"), "ab" * 32
    damaged = made(one, step_id)
    obstore.put(one.backend.control, f"objects/{damaged.manifest}/model/text.txt", b"tixt")
    create, again = two.create, list[Commit]()

    def create_late(key: str, value: dict[str, Any]) -> bool:
        """The other machine repairs while this one is suspended, right before its withdrawal."""
        one.withdraw(damaged)
        again.append(made(one, step_id))
        return create(key, value)

    with monkeypatch.context() as patch:
        patch.setattr(two, "create", create_late)
        two.withdraw(damaged)
    assert again[0].manifest == damaged.manifest
    two.withdraw(damaged)
    assert at("third").lookup(step_id) == again[0]
    text = at("fourth").path(again[0].manifest, full=True) / "model" / "text.txt"
    assert text.read_text() == "text"


def test_a_pull_keeps_what_this_machine_has_added(at: Callable[..., Store]) -> None:
    one, two = at("one"), at("two")
    log = RunLog.begin(one, "toy", {})
    log.event("begin")
    one.backend.send(log.folder)
    log.event("end", failures={}, interrupted=False)
    one.backend.fetch(one.local("runs"))
    assert log.find_end() == "finished"
    two.backend.fetch(two.local("runs"))
    assert RunLog(two.local("runs", log.run_id)).find_end() == ""
    one.backend.send(log.folder)
    two.backend.fetch(two.local("runs"))
    assert RunLog(two.local("runs", log.run_id)).find_end() == "finished"


def named_by_a_run(store: Store, *step_ids: str) -> None:
    run_log = RunLog.begin(store, "toy", {})
    steps = [{"name": step_id, "step_id": step_id} for step_id in step_ids]
    run_log.write("plan.json", {"recipe": "toy", "steps": steps})
    store.backend.send(run_log.folder)


def later(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    now = time.time() + hours * 3600
    monkeypatch.setattr(gc, "time", SimpleNamespace(time=lambda: now))


def collected(store: Store) -> list[str]:
    garbage = gc.find_garbage(store, keep=5, grace=3600)
    gc.remove_garbage(garbage)
    return sorted(item.kind for item in garbage if item.place is store.backend)


def test_what_no_kept_run_names_goes(
    at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = at("one")
    kept, dropped = made(store, "11" * 32, "kept"), made(store, "22" * 32, "dropped")
    named_by_a_run(store, "11" * 32)
    assert collected(at("other")) == [], "all of it is young"
    later(monkeypatch, 2)
    assert collected(at("fourth")) == ["objects", "steps"]
    assert at("third").lookup("22" * 32) is None
    assert list(bucket_of(store).list_objects(f"steps/{'22' * 32}")) == []
    assert list(bucket_of(store).list_objects(f"objects/{dropped.manifest}")) == []
    assert at("fifth").path(kept.manifest, full=True).is_dir()
    again = made(at("sixth"), "22" * 32, "dropped")
    assert again.manifest == dropped.manifest
    assert at("seventh").path(again.manifest, full=True).is_dir()


def test_a_bucket_that_cannot_be_used_is_named(
    at: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    at("one")
    with pytest.raises(StoreError, match=r"s3://missing/x.*expected the object storage to answer"):
        Store.open("s3://missing/x")
    with pytest.raises(StoreError, match=r"ftp://kept.*expected a folder, s3://"):
        Store.open("ftp://kept")
    for url in ("az://account/kept?sig=hush", "s3://key:hush@kept/x"):
        with pytest.raises(StoreError, match="a key or token given in the URL") as refused:
            Store.open(url)
        assert "hush" not in str(refused.value)


def run(store: Store, folder: Path, machine: str, *arguments: str) -> str:
    (folder / "toy.py").write_text(RECIPE)
    environment = {"RATCHET_CACHE": str(folder / machine), "RATCHET_STORE": store.where}
    status, output = command.run(*arguments, environment=environment)
    assert status == 0, output
    return output


def test_a_run_on_a_bucket_goes_on_from_another_machine(
    at: Callable[..., Store], tmp_path: Path
) -> None:
    store, recipe = at("none"), str(tmp_path / "toy.py")
    first = run(store, tmp_path, "one", "run", recipe, "--set", "last=2")
    assert "2/2 steps" in first
    second = run(store, tmp_path, "two", "run", recipe, "--set", "last=3")
    assert "3/3 steps, 2 reused" in second
    assert "toy" in run(store, tmp_path, "three", "status")
    assert run(store, tmp_path, "three", "report").strip().endswith("report.html")
    secret = os.environ["AWS_SECRET_ACCESS_KEY"] + "secret"
    assert not [path for path in tmp_path.rglob("*.json*") if secret in path.read_text()]
