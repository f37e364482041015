"""Watching a run from elsewhere: notifications, and the view of `ratchet status --follow`."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ratchet.errors import InputError
from ratchet.orchestrator.cli import follow
from ratchet.orchestrator.execution import notification
from ratchet.orchestrator.execution.notification import Notifier
from ratchet.orchestrator.run_log import PROGRESS, RunLog
from ratchet.orchestrator.store import Store
from ratchet.orchestrator.store.open_runs import OpenRun


class Receiver(HTTPServer):
    """A server that keeps what is posted to it. `refusals`: how many requests it refuses first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies: list[dict[str, Any]] = []
        self.refusals = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook?key=not-for-all"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, Receiver)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.refusals -= 1
        if server.refusals < 0:
            server.bodies.append(body)
        self.send_response(200 if server.refusals < 0 else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep silent."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(notification, "PAUSE", 0.01)
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_failure_and_end_are_posted_in_order(receiver: Receiver) -> None:
    receiver.refusals = 2
    with Notifier(
        receiver.url, recipe="toy", store="s3://b/p", command="ratchet run toy"
    ) as notifier:
        notifier.about["run"] = "20261127-toy"
        notifier.step_failed("iter0/mine", "no memory\nsecond line")
        notifier.run_ended(
            "failed", 75.0, {"iter0/mine": "no memory"}, numbers={"row/map": 0.5}, report="r.html"
        )
    first, last = receiver.bodies
    assert first["event"] == "step_failed"
    assert first["text"] == "ratchet toy 20261127-toy: step iter0/mine failed: no memory"
    assert (first["step"], first["reason"]) == ("iter0/mine", "no memory\nsecond line")
    assert last["event"] == "run_ended"
    assert last["text"] == "ratchet toy 20261127-toy: failed after 1 m 15 s"
    assert (last["status"], last["failures"], last["numbers"]) == (
        *("failed", {"iter0/mine": "no memory"}),
        {"row/map": 0.5},
    )
    for body in receiver.bodies:
        assert (body["recipe"], body["store"], body["command"]) == (
            "toy",
            "s3://b/p",
            "ratchet run toy",
        )
        assert body["host"]
        assert body["time"] > 1.7e9


def test_run_that_cannot_start_is_posted(receiver: Receiver) -> None:
    with pytest.raises(InputError), Notifier(receiver.url, recipe="toy"):
        raise InputError("prepare.data: no such file")
    (only,) = receiver.bodies
    assert (only["event"], only["run"], only["reason"]) == (
        "run_failed",
        None,
        "prepare.data: no such file",
    )
    assert only["text"] == "ratchet toy: did not run: prepare.data: no such file"


def test_a_url_that_refuses_is_named_without_its_secret(
    receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.refusals = notification.TRIES
    with Notifier(receiver.url, recipe="toy") as notifier:
        notifier.run_ended("finished", 1.0, {})
    said = capsys.readouterr().err
    assert "note: the notification was not sent: " in said
    assert "503" in said
    assert "not-for-all" not in said


def test_without_a_url_nothing_is_posted() -> None:
    with Notifier(None, recipe="toy") as notifier:
        notifier.step_failed("a", "b")
    assert not notifier.sent


@pytest.mark.parametrize("url", ["hooks.slack.com/x", "ftp://x/y", "file:///etc/passwd"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(
        InputError, match=r"--notify or RATCHET_NOTIFY: .* given; expected a URL that begins with"
    ):
        Notifier(url)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, RunLog]:
    """A run of four steps, one of which runs."""
    monkeypatch.setattr(follow, "INTERVAL", 0.01)
    store = Store.open(str(tmp_path / "store"))
    run_log = RunLog.begin(store, "toy", {})
    run_log.write(
        "plan.json",
        {"steps": [{"name": name, "step_id": "0" * 64} for name in ("a", "b", "c", "d")]},
    )
    run_log.event("hit", "a")
    run_log.event("started", "b", attempt=2)
    run_log.event("retry", "b", reason="lost\nmore", wait=2.0)
    run_log.event("started", "b", attempt=3)
    run_log.event("done", "b", seconds=75.0, metrics={"map@25": 0.5})
    run_log.event("waiting", "c", on="another run")
    run_log.event("started", "c", attempt=1)
    return store, run_log


@pytest.mark.parametrize(
    ("failures", "interrupted", "status"),
    [({}, False, 0), ({"c": "no colour"}, False, 1), ({}, True, 130)],
)
def test_a_run_is_shown_from_its_log_and_ends_with_its_status(
    run: tuple[Store, RunLog],
    failures: dict[str, str],
    interrupted: bool,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store, run_log = run
    for step, reason in failures.items():
        run_log.event("failed", step, reason=reason)
        run_log.event("skipped", "d", because=step)
    run_log.event("end", None, failures=failures, interrupted=interrupted)
    assert follow.follow_run(store, run_log) == status
    lines = [line[10:] for line in capsys.readouterr().out.splitlines()]
    assert lines[:6] == [
        f"run       toy {run_log.run_id}: 4 steps",
        "reused    a",
        "started   b  attempt 2",
        "retrying  b again in 2.0 s: lost",
        "started   b  attempt 3",
        "done      b  1 m 15 s  map@25 0.500",
    ]
    assert ("failed    c: no colour" in lines) == bool(failures)
    assert ("skipped   d: needs c" in lines) == bool(failures)


def test_a_run_is_shown_while_it_runs(
    run: tuple[Store, RunLog], capsys: pytest.CaptureFixture[str]
) -> None:
    store, run_log = run
    (run_log.folder / PROGRESS).write_text(
        json.dumps({"c": {"done": 5, "total": 20, "unit": "rows"}})
    )
    with OpenRun(store) as mark:
        mark.set_folder(run_log.folder)
        seen: list[int] = []
        watch = threading.Thread(target=lambda: seen.append(follow.follow_run(store, run_log)))
        watch.start()
        watch.join(0.5)
        assert watch.is_alive()
        run_log.event("done", "c", seconds=1.0, metrics={})
        run_log.event("done", "d", seconds=1.0, metrics={})
        run_log.event("end", None, failures={}, interrupted=False)
        watch.join(10)
    assert seen == [0]
    assert "finished  4/4 steps, 1 reused" in capsys.readouterr().out


def test_a_run_whose_driver_was_killed_is_said_to_be(
    run: tuple[Store, RunLog], capsys: pytest.CaptureFixture[str]
) -> None:
    store, run_log = run
    assert follow.follow_run(store, run_log) == 1
    assert f"run {run_log.run_id}: its driver is gone; give the command" in capsys.readouterr().out
