"""Replicas of `ratchet serve` on the machines of a cluster."""

from __future__ import annotations

import pytest

from ratchet.jobs.serving.server import count_threads


@pytest.mark.parametrize(
    ("cpus", "replicas", "threads"),
    [([8], 1, 8), ([8], 3, 2), ([8, 8], 1, 8), ([8, 8], 3, 4), ([0, 4, 2], 2, 2), ([2, 2], 4, 1), ([1], 2, 1)],
)
def test_a_replica_fits_on_one_machine(cpus: list[int], replicas: int, threads: int) -> None:
    """Where all CPUs of the cluster were divided, a replica of two machines waited for room that there never was."""
    assert count_threads(cpus, replicas) == threads
