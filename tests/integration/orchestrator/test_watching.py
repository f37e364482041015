"""A run on a cluster, watched from elsewhere: its notifications, its metrics, and `ratchet status --follow`."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import command
from nodes import Nodes, environment_of, kill
from toy_runs import Toy
from waiting import wait_for


def receive(bodies: list[dict[str, Any]]) -> HTTPServer:
    """Start a server that collects what is posted to it."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Keep silent."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_a_run_on_a_cluster_is_watched_from_elsewhere(tmp_path: Path) -> None:
    """Takes half a minute: a cluster starts, and four steps of some seconds run on it, one of which fails."""
    toy, bodies = Toy(tmp_path), list[dict[str, Any]]()
    environment = environment_of(tmp_path, TOY_TRACE=str(toy.trace))
    nodes = Nodes(tmp_path, environment, "--num-cpus=2", "--include-dashboard=false")
    server = receive(bodies)
    try:
        url = f"http://127.0.0.1:{server.server_port}/?key=not-for-all"
        settings = [
            word for text in ("seconds=1", "size=16", "fault=value") for word in ("--set", text)
        ]
        run = toy.start("--address", nodes.address, "--notify", url, *settings)
        wait_for(lambda: bool(toy.done()), "no step has begun")
        followed = command.start("status", "--follow", "--store", str(toy.store))
        output, _ = run.communicate(timeout=120)
        shown, _ = followed.communicate(timeout=60)
    finally:
        nodes.end()
        server.shutdown()
    assert run.returncode == followed.returncode == 1, output + shown
    lines = [line[10:] for line in shown.splitlines()]
    assert "started   a" in lines
    assert any(line.startswith("done      a  ") for line in lines)
    assert "failed    b: toy.py:30 in run: ValueError: seven is not a colour" in lines
    assert "skipped   c: needs b" in lines
    assert [body["event"] for body in bodies] == ["step_failed", "run_ended"]
    assert (bodies[0]["step"], bodies[1]["status"]) == ("b", "failed")
    for path in (toy.store / "runs").rglob("*"):
        assert not path.is_file() or b"not-for-all" not in path.read_bytes(), path


def test_following_ends_when_the_driver_is_killed(tmp_path: Path) -> None:
    """Takes a quarter of a minute: Ray starts, and a step begins."""
    toy = Toy(tmp_path)
    run = toy.start("--set", "seconds=1")
    wait_for(lambda: bool(toy.done()), "no step has begun")
    followed = command.start("status", "--follow", "--store", str(toy.store))
    kill(run)
    shown, _ = followed.communicate(timeout=60)
    assert followed.returncode == 1
    assert "its driver is gone; give the command of the run again to continue it" in shown
