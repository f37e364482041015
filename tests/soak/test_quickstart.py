"""Whole recipes: quickstart with a reranker, and with processes of Ray that are killed; countdown; theorems."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest
from nodes import processes, title
from quickstart_runs import SMALL, WITHOUT_TRAINING, run, start
from store_contents import addresses, started
from waiting import wait_for

from ratchet.jobs.training.teacher_gate import read

pytestmark = pytest.mark.timeout(1200)

TWO_WORKERS = ("--set", "embed.workers=2", "--set", "embed.cpus=1")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    store = tmp_path_factory.mktemp("undisturbed")
    status, output = run(store, "run", "quickstart", *WITHOUT_TRAINING, *TWO_WORKERS)
    assert status == 0, output
    return addresses(store)


@pytest.mark.parametrize("victim", ["ray::iter0/finetune_embedder", "embed_test worker", "raylet"])
def test_a_killed_process_of_ray_loses_nothing(
    tmp_path: Path, undisturbed: dict[str, str], victim: str
) -> None:
    """Takes minutes: a run of the quickstart for each process of Ray that is killed."""
    store = tmp_path / "killed"
    training = victim.endswith("finetune_embedder")
    command = ("run", "quickstart", *(SMALL if training else WITHOUT_TRAINING), *TWO_WORKERS)
    process = start(store, *command)
    step = "iter0/finetune_embedder" if training else "zero_shot/embed_test"
    wait_for(started(store, step), f"{step} was never started")
    pids = wait_for(
        lambda: [pid for pid in processes(process.pid) if victim in title(pid)],
        f"no {victim} to kill",
    )
    time.sleep(1.5)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    output, _ = process.communicate(timeout=580)
    if (
        process.returncode != 0
    ):  # Ray itself was lost with its last process: the same command goes on
        status, output = run(store, *command)
        assert status == 0, output
    after = addresses(store)
    assert undisturbed.items() <= after.items()
    assert not training or "iter0/evaluate" in after


def test_the_whole_loop_with_a_reranker_that_teaches(tmp_path: Path) -> None:
    """Takes minutes: two iterations with an embedder and a reranker."""
    options = (
        "questions=50",
        "iterations=2",
        "reranker=true",
        "*/finetune_*.epochs=1",
        "finetune_reranker.num_negatives=2",
    )
    status, output = run(
        tmp_path, "run", "quickstart", *(part for option in options for part in ("--set", option))
    )
    assert status == 0, output
    found = addresses(tmp_path)
    for name in ("rerank_mined", "finetune_embedder", "finetune_reranker", "evaluate_reranked"):
        assert f"iter1/{name}" in found
    assert {"iter0/rerank_mined", "iter0/rerank_hard"}.isdisjoint(found), "there is no teacher yet"
    for label in ("iteration 0, reranked", "iteration 1, reranked"):
        assert label in output
    lists = tmp_path / "objects" / found["iter1/rerank_mined"]
    scored = [
        set(json.loads(line)) for line in (lists / "flag_embedding.jsonl").read_text().splitlines()
    ]
    assert all(({"pos_scores", "neg_scores"} <= row) == read(lists).is_open for row in scored)
    page = (sorted(tmp_path.glob("runs/*"))[-1] / "report.html").read_text()
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert any("reranked" in chart for chart in charts), "reranked lists are a line of their own"


def test_a_decoder_learns_countdown_from_nothing(tmp_path: Path) -> None:
    """Takes minutes: 400 training steps until the decoder solves tasks, and generation from three checkpoints."""
    options = {
        "make_countdown.tasks": "5000",
        "make_countdown.sizes": "2",
        "checkpoints": "60,400",
        "sft.epochs": "3",
        "sft.batch_size": "32",
        "sft.learning_rate": "3e-3",
        "max_test": "100",
        "generate.max_new_tokens": "60",
        "init_decoder.hidden_size": "128",
        "init_decoder.num_hidden_layers": "3",
        "sft.max_new_tokens": "60",
        "sft.valid_samples": "30",
        "sft.lr_scheduler_type": "constant",
        "sft.warmup_steps": "110",
    }
    settings = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    status, output = run(tmp_path, "run", "countdown", *settings)
    assert status == 0, output
    (newest,) = tmp_path.glob("runs/*/report.md")
    rows = {
        line.split("|")[1].strip(): line.split("|")[2:]
        for line in newest.read_text().splitlines()
        if "|" in line
    }
    solved = [float(rows[name][1].strip(" *")) for name in ("untrained", "step 60", "step 400")]
    assert solved[0] == 0
    assert solved[2] > 0.3
    assert solved[2] > solved[1]
    page = (newest.parent / "report.html").read_text()
    for heading in ("share of questions failed", "equation_not_balanced", "collapses"):
        assert heading in page


def test_theorems_rank_all_held_out_statements(tmp_path: Path) -> None:
    """Takes minutes: MiniLM learns what questions about the same mistake share. A mistake is a paper."""
    from ratchet.data.formats.examples import read_example_questions

    of_rule: dict[str, list[str]] = {}
    for query in read_example_questions(120).queries:
        of_rule.setdefault(query.positives[0], []).append(query.text)
    with (tmp_path / "papers.jsonl").open("w") as file:
        for rule, texts in sorted(of_rule.items()):
            file.write(json.dumps({"arxiv_id": rule, "theorems": texts}) + "\n")
    settings = (
        "finetune_embedder_pairs.batch_size=32",
        "finetune_embedder_pairs.epochs=2",
        "max_length=64",
        "prepare_papers.validation_fraction=0.2",
    )
    arguments = [part for setting in settings for part in ("--set", setting)]
    code, output = run(
        tmp_path / "store",
        "run",
        "theorems",
        "--set",
        f"data={tmp_path / 'papers.jsonl'}",
        *arguments,
    )
    assert code == 0, output
    (newest,) = (tmp_path / "store").glob("runs/*/report.md")
    report = newest.read_text()
    rows = {
        line.split("|")[1].strip(): line.split("|")[2:]
        for line in report.splitlines()
        if line.startswith("| ")
    }
    assert {"BM25", "zero-shot", "finetuned"} <= set(rows)
    mrr = {
        name: float(rows[name][0].strip(" *").split()[0])
        for name in ("BM25", "zero-shot", "finetuned")
    }
    assert mrr["finetuned"] > mrr["zero-shot"]
