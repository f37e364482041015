"""The recipes through the command, with MiniLM on a real Ray: a killed driver, the report, wrong input."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from quickstart_runs import SMALL, run, start, wait_for
from store_contents import addresses

pytestmark = pytest.mark.timeout(1200)

DETERMINISTIC = (
    "prepare",
    "bm25/evaluate",
    "zero_shot/embed_test",
    "zero_shot/embed_corpus",
    "zero_shot/embed_train",
    "iter0/mine",
)


def test_killed_in_training_it_goes_on_and_ends_in_a_table_and_a_report(tmp_path: Path) -> None:
    """Takes a minute or more: one iteration of the recipe with MiniLM, killed once, and the same commands again."""
    process = start(tmp_path, "run", "quickstart", *SMALL)
    wait_for(tmp_path, "started", "iter0/finetune_embedder")
    time.sleep(12)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = addresses(tmp_path)
    assert set(DETERMINISTIC) <= set(before)

    status, output = run(tmp_path, "run", "quickstart", *SMALL)
    assert status == 0, output
    after = addresses(tmp_path)
    assert {"iter0/evaluate", "zero_shot/evaluate"} <= set(after)
    assert {name: after[name] for name in before} == before, "a finished step was done again"
    for label in ("BM25", "zero-shot", "iteration 0"):
        assert label in output
    newest = sorted(tmp_path.glob("runs/*"))[-1]
    page = (newest / "report.html").read_text()
    assert "iteration 0" in page
    assert "loss" in page

    status, again = run(tmp_path, "run", "quickstart", *SMALL)
    assert status == 0
    assert "starting Ray" not in again

    status, explained = run(tmp_path, "plan", "quickstart", "--explain", *SMALL, "--set", "iter0/mine.num_negatives=3")
    assert status == 0
    assert "setting num_negatives: 8 -> 3" in explained
    status, shown = run(tmp_path, "status")
    assert "finished" in shown


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
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in newest.read_text().splitlines() if "|" in line}
    solved = [float(rows[name][1].strip(" *")) for name in ("untrained", "step 60", "step 400")]
    assert solved[0] == 0
    assert solved[2] > 0.3
    assert solved[2] > solved[1]
    page = (newest.parent / "report.html").read_text()
    for heading in ("share of questions failed", "equation_not_balanced", "collapses"):
        assert heading in page


def test_theorems_rank_all_held_out_statements(tmp_path: Path) -> None:
    """Papers of generated questions about one mistake each: MiniLM learns what the questions of a mistake share."""
    from ratchet.data.synthetic_misconceptions import format_query, generate_questions

    of_rule: dict[str, list[str]] = {}
    for question in generate_questions(120, 1):
        for n, rule in enumerate(question.rules):
            if rule:
                of_rule.setdefault(rule, []).append(format_query(question, n))
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
    code, output = run(tmp_path / "store", "run", "theorems", "--set", f"data={tmp_path / 'papers.jsonl'}", *arguments)
    assert code == 0, output
    (newest,) = (tmp_path / "store").glob("runs/*/report.md")
    report = newest.read_text()
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in report.splitlines() if line.startswith("| ")}
    assert {"bm25", "jaccard", "zero-shot", "finetuned"} <= set(rows)
    mrr = {name: float(rows[name][0].strip(" *")) for name in ("bm25", "zero-shot", "finetuned")}
    assert mrr["finetuned"] > mrr["zero-shot"]
    assert "true positives in the top k" in report


def broken(folder: Path, what: str) -> Sequence[str]:
    file = folder / "x.jsonl"
    rows = "".join(json.dumps({"query": f"q{i}", "pos": [f"p{i}"], "neg": []}) + "\n" for i in range(30))
    options = {
        "json": lambda: file.write_text(rows + '{"query": "q", "pos": ["p"]\n'),
        "positives": lambda: file.write_text(rows + '{"query": "q", "pos": []}\n'),
        "utf8": lambda: file.write_bytes(rows.encode() + b'{"query": "\xff"}\n'),
        "empty": lambda: file.write_text(""),
        "weights": lambda: (
            file.write_text(rows),
            (folder / "model").mkdir(),
            (folder / "model" / "config.json").write_text("{}"),
        ),
        "setting": lambda: file.write_text(rows),
        "key": lambda: file.write_text(rows),
        "path": lambda: None,
    }
    options[what]()
    extra = {
        "weights": ["--set", f"base={folder / 'model'}"],
        "setting": ["--set", "finetune_embedder.learning_rate=-1"],
        "key": ["--set", "finetune_embedder.learning_rat=1"],
    }
    return ["run", "retriever", "--set", f"data={file}", *extra.get(what, [])]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("json", "x.jsonl:31: not JSON"),
        ("positives", "x.jsonl:31: pos is empty"),
        ("utf8", "x.jsonl:31: byte 0xff"),
        ("empty", "corpus is empty"),
        ("weights", "tokenizer"),
        ("setting", "learning_rate"),
        ("key", "did you mean 'learning_rate'"),
        ("path", "no such file"),
    ],
)
def test_bad_input_is_named_before_ray_starts(tmp_path: Path, what: str, said: str) -> None:
    store = tmp_path / "store"
    status, output = run(store, *broken(tmp_path, what))
    assert status == 2, output
    assert said in output
    assert "Traceback" not in output
    assert "starting Ray" not in output
    assert not list(store.glob("runs/*")), "a run was begun"
