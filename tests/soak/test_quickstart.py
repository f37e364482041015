"""Processes of Ray that are killed during the quickstart recipe."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from nodes import processes, title
from quickstart_runs import SMALL, WITHOUT_TRAINING, run, start, wait_for
from store_contents import addresses

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    store = tmp_path_factory.mktemp("undisturbed")
    status, output = run(store, "run", "quickstart", *WITHOUT_TRAINING)
    assert status == 0, output
    return addresses(store)


@pytest.mark.parametrize("victim", ["ray::RayTrainWorker", "ray::MapWorker", "raylet"])
def test_a_killed_process_of_ray_loses_nothing(tmp_path: Path, undisturbed: dict[str, str], victim: str) -> None:
    """Takes minutes: a run of the quickstart for each process of Ray that is killed."""
    store = tmp_path / "killed"
    training = victim == "ray::RayTrainWorker"
    command = ("run", "quickstart", *(SMALL if training else WITHOUT_TRAINING))
    process = start(store, *command)
    wait_for(store, "started", "iter0/finetune_embedder" if training else "zero_shot/embed_test")
    end = time.monotonic() + 120
    while not (pids := [pid for pid in processes(process.pid) if victim in title(pid)]):
        assert time.monotonic() < end, f"no {victim} to kill"
        time.sleep(0.05)
    time.sleep(1.5)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    output, _ = process.communicate(timeout=580)
    if process.returncode != 0:  # Ray itself was lost with its last process: the same command goes on
        status, output = run(store, *command)
        assert status == 0, output
    after = addresses(store)
    assert undisturbed.items() <= after.items()
    assert not training or "iter0/evaluate" in after
