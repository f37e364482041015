"""The main job as a person runs it: the command, on real MiniLM and real Ray, killed on the way, with a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from kept import addresses, events
from nodes import processes, title

from jobs.standing import read

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.timeout(1200)
SMALL = ("--set", "questions=48", "--set", "epochs=1", "--set", "reranker=false")
DETERMINISTIC = (
    "prepare",
    "bm25/evaluate",
    "zero_shot/embed_test",
    "zero_shot/embed_corpus",
    "zero_shot/embed_train",
    "iter0/mine",
)


def start(store: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *arguments, "--store", str(store)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(store: Path, *arguments: str) -> tuple[int, str]:
    process = start(store, *arguments)
    output, _ = process.communicate(timeout=1100)
    return process.returncode, output


def wait_for(store: Path, kind: str, step: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not any((event["event"], event["step"]) == (kind, step) for event in events(store)):
        assert time.monotonic() < end, f"{step} was never {kind}"
        time.sleep(0.1)


def test_killed_in_training_it_goes_on_and_ends_in_a_table_and_a_report(tmp_path: Path) -> None:
    once = (*SMALL, "--set", "iterations=1")
    process = start(tmp_path, "run", "quickstart", *once)
    wait_for(tmp_path, "started", "iter0/finetune_embedder")
    time.sleep(12)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = addresses(tmp_path)
    assert set(DETERMINISTIC) <= set(before)

    status, output = run(tmp_path, "run", "quickstart", *once)
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

    status, again = run(tmp_path, "run", "quickstart", *once)
    assert status == 0
    assert "starting Ray" not in again

    status, explained = run(tmp_path, "plan", "quickstart", "--explain", *once, "--set", "iter0/mine.negatives=3")
    assert status == 0
    assert "setting negatives: 8 -> 3" in explained
    status, shown = run(tmp_path, "status")
    assert "finished" in shown


@pytest.mark.slow
def test_the_whole_loop_with_a_reranker_that_teaches(tmp_path: Path) -> None:
    options = ("questions=50", "epochs=1", "reranker_epochs=1,1", "finetune_reranker.negatives=2")
    status, output = run(tmp_path, "run", "quickstart", *(part for option in options for part in ("--set", option)))
    assert status == 0, output
    found = addresses(tmp_path)
    for name in ("score_mined", "finetune_embedder", "finetune_reranker", "evaluate_reranked"):
        assert f"iter1/{name}" in found
    assert {"iter0/score_mined", "iter0/score_hard"}.isdisjoint(found), "there is no teacher yet"
    for label in ("iteration 0, reranked", "iteration 1, reranked"):
        assert label in output
    lists = tmp_path / "objects" / found["iter1/score_mined"]
    scored = [set(json.loads(line)) for line in (lists / "flag_embedding.jsonl").read_text().splitlines()]
    assert all(({"pos_scores", "neg_scores"} <= row) == read(lists).teaches for row in scored)
    page = (sorted(tmp_path.glob("runs/*"))[-1] / "report.html").read_text()
    assert page.count('class="line s0" points=') >= 1
    assert page.count('class="line s1" points=') >= 1, "reranked lists are a line of their own"


@pytest.mark.slow
def test_a_decoder_learns_countdown_from_nothing(tmp_path: Path) -> None:
    options = {
        "tasks": "5000",
        "sizes": "2",
        "checkpoints": "60,400",
        "epochs": "3",
        "batch": "32",
        "learning_rate": "3e-3",
        "max_test": "100",
        "max_new_tokens": "60",
        "make_decoder.hidden": "128",
        "make_decoder.layers": "3",
        "sft.valid_rows": "30",
        "sft.schedule": "constant",
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


@pytest.mark.slow
def test_theorems_rank_all_held_out_statements(tmp_path: Path) -> None:
    """Papers of generated questions about one mistake each: MiniLM learns what the questions of a mistake share."""
    from data.mistakes import query_text, questions

    of_rule: dict[str, list[str]] = {}
    for question in questions(120, 1):
        for n, rule in enumerate(question.rules):
            if rule:
                of_rule.setdefault(rule, []).append(query_text(question, n))
    with (tmp_path / "papers.jsonl").open("w") as file:
        for rule, texts in sorted(of_rule.items()):
            file.write(json.dumps({"arxiv_id": rule, "theorems": texts}) + "\n")
    settings = ("batch=32", "epochs=2", "max_length=64", "prepare_papers.validation_fraction=0.2")
    arguments = [part for setting in settings for part in ("--set", setting)]
    code, output = run(tmp_path / "store", "run", "theorems", "--set", f"data={tmp_path / 'papers.jsonl'}", *arguments)
    assert code == 0, output
    (newest,) = (tmp_path / "store").glob("runs/*/report.md")
    report = newest.read_text()
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in report.splitlines() if line.startswith("| ")}
    assert {"bm25", "jaccard", "zero-shot", "finetuned"} <= set(rows)
    mrr = {name: float(rows[name][0].strip(" *")) for name in ("bm25", "zero-shot", "finetuned")}
    assert mrr["finetuned"] > mrr["zero-shot"]
    assert "true positives within the first k" in report


def test_ablations_share_what_they_have_in_common(tmp_path: Path) -> None:
    """Steps of the same job, settings and inputs are one step: the first iteration has no teacher in any case."""
    from orchestrator.recipe import Settings, build, find
    from orchestrator.step import Output, Step

    file = tmp_path / "train.jsonl"
    file.write_text('{"query": "q", "pos": ["p"], "neg": []}\n')
    steps, summary, _ = build(
        find("misconceptions"), Settings({"ablations": "true", "reranker": "embedder", "data": str(file)})
    )

    def shape(step: Step) -> object:
        inputs = [(n, shape(i.step), i.part) if isinstance(i, Output) else (n, i.path) for n, i in step.references()]
        return (step.job.name, step.config, tuple(inputs))

    def shapes(ending: str) -> list[object]:
        return [shape(step) for step in steps if step.name.endswith(ending)]

    assert {"iteration 1", "iteration 1, no teacher", "iteration 1, no mining"} <= {row.label for row in summary.rows}
    assert len(shapes("iter0/finetune_embedder")) == 3
    assert len(set(shapes("iter0/finetune_embedder"))) == 2, "with and without mining"
    assert len(set(shapes("iter0/mine"))) == 1
    assert len(set(shapes("iter1/finetune_embedder"))) == 3


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("countdown", {}, {"tasks", "base", "start/generate", "checkpoint-3000/evaluate", "checkpoints"}),
        ("countdown", {"base": "BASE", "checkpoints": ""}, {"sft", "best/evaluate"}),
        ("countdown", {"base": "BASE", "teacher": "BASE"}, {"lessons/teach", "teacher/evaluate"}),
        ("gsm8k", {"base": "BASE", "data": "x", "teacher": "BASE", "teacher_samples": "4"}, {"lessons/accept", "sft"}),
        ("squad", {"base": "BASE", "data": "x"}, {"batch/trained/evaluate", "sequential/sft"}),
    ],
)
def test_recipes_that_answer_can_be_built(
    tmp_path: Path, name: str, settings: dict[str, str], expected: set[str]
) -> None:
    from orchestrator.recipe import Settings, build, find

    given = {key: str(tmp_path) if value == "BASE" else value for key, value in settings.items()}
    steps, summary, _ = build(find(name), Settings(given))
    assert expected <= {step.name for step in steps}
    assert all(row.columns for row in summary.rows)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    store = tmp_path_factory.mktemp("undisturbed")
    status, output = run(store, "run", "quickstart", *SMALL, "--set", "iterations=0")
    assert status == 0, output
    return addresses(store)


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["ray::RayTrainWorker", "ray::MapWorker", "raylet"])
def test_a_killed_process_of_ray_loses_nothing(tmp_path: Path, undisturbed: dict[str, str], victim: str) -> None:
    store = tmp_path / "killed"
    training = victim == "ray::RayTrainWorker"
    command = ("run", "quickstart", *SMALL, "--set", f"iterations={1 if training else 0}")
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
        "setting": ["--set", "learning_rate=-1"],
        "key": ["--set", "finetune_embedder.learning_rat=1"],
    }
    return ["run", "misconceptions", "--set", f"data={file}", *extra.get(what, [])]


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
