"""A run on a cluster, watched from elsewhere: its notifications, its metrics, and `ratchet status --follow`."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import command
from nodes import Nodes, environment_of, free_port, kill
from toy_runs import Toy
from waiting import wait_for


def read_metrics(port: int) -> dict[str, float]:
    """Return the values of Ratchet's metrics, by name and labels."""
    text = ""
    with suppress(OSError):
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if line.startswith("ray_ratchet"))
    return {name: float(value) for name, _, value in lines}


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
    toy, port, bodies = Toy(tmp_path), free_port(), list[dict[str, Any]]()
    environment = environment_of(tmp_path, TOY_TRACE=str(toy.trace))
    nodes = Nodes(tmp_path, environment, "--num-cpus=2", "--include-dashboard=false", f"--metrics-export-port={port}")
    server = receive(bodies)
    try:
        url = f"http://127.0.0.1:{server.server_port}/?key=not-for-all"
        settings = [word for text in ("seconds=1", "size=16", "fault=value") for word in ("--set", text)]
        run = toy.start("--address", nodes.address, "--notify", url, *settings)
        wait_for(lambda: bool(toy.done()), "no step has begun")
        followed = command.start("status", "--follow", "--store", str(toy.store))
        metrics: dict[str, float] = {}

        def find_rates() -> dict[str, float]:
            metrics.update(read_metrics(port))
            return {name: value for name, value in metrics.items() if value and "per_second" in name}

        rates = wait_for(find_rates, "no rate among the metrics of Ray")
        output, _ = run.communicate(timeout=120)
        shown, _ = followed.communicate(timeout=60)
    finally:
        nodes.end()
        server.shutdown()
    assert run.returncode == followed.returncode == 1, output + shown
    name, rate = next(iter(rates.items()))
    assert 'recipe="toy"' in name
    assert 'unit="rows"' in name
    assert 0.5 < rate < 1.5
    page = (command.ROOT / "docs" / "cluster.md").read_text()
    described = set(re.findall(r"`(ray_ratchet_\w+)`", page)) - {"ray_ratchet_step_number"}  # this job has none
    assert {name.partition("{")[0] for name in metrics} == described
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
