"""The quickstart recipe with a reranker, and with processes of Ray that are killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from nodes import processes, title
from quickstart_runs import SMALL, WITHOUT_TRAINING, run, start, wait_for
from store_contents import addresses

from ratchet.jobs.training.teacher_gate import read

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


def test_the_whole_loop_with_a_reranker_that_teaches(tmp_path: Path) -> None:
    """Takes minutes: two iterations with an embedder and a reranker."""
    options = ("questions=50", "*/finetune_*.epochs=1", "finetune_reranker.num_negatives=2")
    status, output = run(tmp_path, "run", "quickstart", *(part for option in options for part in ("--set", option)))
    assert status == 0, output
    found = addresses(tmp_path)
    for name in ("rerank_mined", "finetune_embedder", "finetune_reranker", "evaluate_reranked"):
        assert f"iter1/{name}" in found
    assert {"iter0/rerank_mined", "iter0/rerank_hard"}.isdisjoint(found), "there is no teacher yet"
    for label in ("iteration 0, reranked", "iteration 1, reranked"):
        assert label in output
    lists = tmp_path / "objects" / found["iter1/rerank_mined"]
    scored = [set(json.loads(line)) for line in (lists / "flag_embedding.jsonl").read_text().splitlines()]
    assert all(({"pos_scores", "neg_scores"} <= row) == read(lists).is_open for row in scored)
    page = (sorted(tmp_path.glob("runs/*"))[-1] / "report.html").read_text()
    assert page.count('class="line s0" points=') >= 1
    assert page.count('class="line s1" points=') >= 1, "reranked lists are a line of their own"
