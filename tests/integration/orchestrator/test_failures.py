"""Nodes that are lost, join late or miss the store during a run of the quickstart recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from node_runs import RUN, check_missing_store_is_named, clusters, ended, read_logs, start
from nodes import Nodes
from store_contents import results
from waiting import wait_for

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[[], Nodes]]:
    with clusters(tmp_path) as make:
        yield make


@pytest.mark.soak
def test_run_waits_for_starting_machines(cluster: Callable[[], Nodes], tmp_path: Path) -> None:
    """Takes half a minute: a head and a node start, then MiniLM embeds a corpus."""
    nodes, store = cluster(), tmp_path / "store"
    run = start(nodes, store, *RUN, "--set", "iterations=0")
    wait_for(lambda: "waiting up to" in read_logs(tmp_path), "it did not say so")
    nodes.add()
    ended(run, store)
    assert "zero_shot/evaluate" in results(store)


@pytest.mark.soak
def test_a_machine_that_does_not_see_the_store_is_named(
    cluster: Callable[[], Nodes], tmp_path: Path
) -> None:
    """Takes half a minute: a cluster of three nodes, and all steps before the one that fails."""
    check_missing_store_is_named(cluster(), tmp_path, "embed")
