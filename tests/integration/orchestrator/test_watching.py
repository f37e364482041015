"""A run on a cluster, watched from elsewhere: `ratchet status --follow`."""

from __future__ import annotations

from pathlib import Path

import command
from nodes import Nodes, environment_of, kill
from toy_runs import Toy
from waiting import wait_for


def test_a_run_on_a_cluster_is_watched_from_elsewhere(tmp_path: Path) -> None:
    """Takes half a minute: a cluster starts, and four steps of some seconds run on it, one of which fails."""
    toy = Toy(tmp_path)
    environment = environment_of(tmp_path, TOY_TRACE=str(toy.trace))
    nodes = Nodes(tmp_path, environment, "--num-cpus=2", "--include-dashboard=false")
    try:
        settings = [
            word for text in ("seconds=1", "size=16", "fault=value") for word in ("--set", text)
        ]
        run = toy.start("--address", nodes.address, *settings)
        wait_for(lambda: bool(toy.done()), "no step has begun")
        followed = command.start("status", "--follow", "--store", str(toy.store))
        output, _ = run.communicate(timeout=120)
        shown, _ = followed.communicate(timeout=60)
    finally:
        nodes.end()
    assert run.returncode == followed.returncode == 1, output + shown
    lines = [line[10:] for line in shown.splitlines()]
    assert "started   a" in lines
    assert any(line.startswith("done      a  ") for line in lines)
    assert "failed    b: toy.py:30 in run: ValueError: seven is not a colour" in lines
    assert "skipped   c: needs b" in lines


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
