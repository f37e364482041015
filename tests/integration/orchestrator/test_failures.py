"""Nodes that are lost, join late or miss the store during a run of the quickstart recipe."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from node_runs import ONE, RUN, clusters, ended, sets, start
from nodes import Nodes, kill
from store_contents import results
from waiting import wait_for

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[], Nodes]]:
    with clusters(tmp_path) as make:
        yield make


def read_logs(folder: Path) -> str:
    return "".join(log.read_text() for log in folder.glob("driver-*.log"))


def test_a_run_waits_a_while_for_the_machines_of_a_cluster_that_just_started(
    cluster: Callable[[], Nodes], tmp_path: Path
) -> None:
    """Takes half a minute: a head and a node start, then MiniLM embeds a corpus."""
    nodes, store = cluster(), tmp_path / "store"
    run = start(nodes, store, *RUN, "--set", "iterations=0")
    wait_for(lambda: "waiting up to" in read_logs(tmp_path), "it did not say so")
    nodes.add()
    ended(run, store)
    assert "zero_shot/evaluate" in results(store)


@pytest.mark.parametrize("job", ["embed", "finetune_embedder"])
def test_a_machine_that_does_not_see_the_store_is_named(cluster: Callable[[], Nodes], tmp_path: Path, job: str) -> None:
    """Takes half a minute per job: a cluster of three nodes, and all steps before the one that fails."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("a folder cannot be hidden from a process here")
    nodes, store = cluster(), tmp_path / "store"
    store.mkdir()
    nodes.add("--labels=sees=yes")
    nodes.add("--labels=sees=no", without=store)
    run = start(nodes, store, *ONE, *sets("*.labels=sees=yes", f"{job}.labels=sees=no", "*.retries=0"))
    with suppress(subprocess.TimeoutExpired):
        run.wait(300)
    kill(run)
    said = " ".join(read_logs(tmp_path).split())
    assert run.returncode == 1, said
    assert re.search(rf"failed: step \S+/{job}\w*, machine 127\.0\.0\.3: ", said), said
    assert "mount a shared file system on every machine" in said, said
