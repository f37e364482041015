"""Mistakes in settings, parameters, resources and bounds, as found at plan."""

from __future__ import annotations

from pathlib import Path

import mistakes
import pytest
from mistakes import MODEL, Mistake

PAPERS = "".join(
    f'{{"arxiv_id": "a{i}", "theorems": ["x {i} y", "z {i} w"], "lemmas": ["q {i}"]}}\n'
    for i in range(40)
)
OTHERS = "".join(f'{{"arxiv_id": "a{i}", "theorems": ["x {i} u", "z {i} v"]}}\n' for i in (40, 3))


def quickstart(line: str, answer: str) -> Mistake:
    command = f"plan quickstart --set base=base --set reranker=true --set '{line}'"
    return Mistake(f"quickstart_{line}", command, answer, MODEL)


def theorems(line: str, answer: str) -> Mistake:
    command = f"plan theorems --set data=papers.jsonl --set base=base --set '{line}'"
    return Mistake(f"theorems_{line}", command, answer, {"papers.jsonl": PAPERS, **MODEL})


def other(name: str, line: str, answer: str) -> Mistake:
    """A recipe whose parameters are read before its files."""
    required = "--set data=." + (
        "" if name in ("countdown", "retriever", "misconceptions") else " --set base=."
    )
    return Mistake(f"{name}_{line}", f"plan {name} {required} --set '{line}'", answer)


def given(line: str, expected: str) -> str:
    """The answer for a `--set` line."""
    return rf"--set {line}: '[^']*' given"


PARAMETERS = [
    quickstart("iterations=-1", given("iterations=-1", ">= 0")),
    quickstart("iterations=two", given("iterations=two", "a valid integer.*")),
    quickstart("iterations=1.5", given(r"iterations=1\.5", "a valid integer.*")),
    quickstart("questions=0", given("questions=0", ">= 1")),
    quickstart("questions=-5", given("questions=-5", ">= 1")),
    quickstart("iterations=1000000", given("iterations=1000000", "<= 1000")),
    quickstart("seed=-1", given("seed=-1", ">= 0")),
    quickstart("seed=99999999999", given("seed=99999999999", "< 4294967296")),
    quickstart("mine.seed=-1", given(r"mine\.seed=-1", ">= 0")),
    Mistake(
        "countdown_checkpoints twice",
        "plan countdown --set checkpoints=5,5",
        r"sft\.checkpoints: .*5, 5.* given",
    ),
    quickstart("seed=abc", given("seed=abc", "a valid integer.*")),
    quickstart("seed=", given("seed=", "a valid integer.*")),
    quickstart("reranker=maybe", given("reranker=maybe", "a valid boolean.*")),
    quickstart(
        "iteration=1",
        r"--set iteration=1: recipe quickstart has no parameter .*; did you mean 'iterations'\?",
    ),
    quickstart("questions", r"--set questions: expected name=value or .*"),
    quickstart("=3", r"--set =3: expected name=value or .*"),
    other("retriever", "iterations=-3", given("iterations=-3", ">= 0")),
    other("misconceptions", "iterations=-1", given("iterations=-1", ">= 0")),
    other(
        "misconceptions",
        "mining=eech",
        given("mining=eech", "one of each, .*; did you mean 'each'."),
    ),
    other(
        "misconceptions", "distillation=kl", given("distillation=kl", "one of none, .* 'kl_div'.")
    ),
    other("misconceptions", "bm25=perhaps", given("bm25=perhaps", "a valid boolean.*")),
    other("countdown", "ce_weight=1.5", given(r"ce_weight=1\.5", "<= 1")),
    other("countdown", "ce_weight=-0.5", given(r"ce_weight=-0\.5", ">= 0")),
    other("countdown", "ce_weight=nan", r"--set ce_weight=nan: 'nan' given"),
    other("countdown", "num_completions=0", given("num_completions=0", ">= 1")),
    other("countdown", "teacher_completions=-1", given("teacher_completions=-1", ">= 0")),
    other("countdown", "max_test=0", given("max_test=0", ">= 1")),
    other("countdown", "max_test=-4", given("max_test=-4", ">= 1")),
    other("countdown", "checkpoints=0", given("checkpoints=0", ">= 1")),
    other("countdown", "checkpoints=5,-1", given("checkpoints=5,-1", ">= 1")),
    other("countdown", "checkpoints=a,b", given("checkpoints=a,b", "a valid integer.*")),
    other(
        "countdown", "method=ful", given("method=ful", "one of lora, full; did you mean 'full'.")
    ),
    other("gsm8k", "ce_weight=2", given("ce_weight=2", "<= 1")),
    other("gsm8k", "max_train=0", given("max_train=0", ">= 1")),
    other("gsm8k", "max_test=-1", given("max_test=-1", ">= 1")),
    other("gsm8k", "num_completions=-2", given("num_completions=-2", ">= 1")),
    other("gsm8k", "teacher_completions=-2", given("teacher_completions=-2", ">= 0")),
    other("gsm8k", "task=gsm9k", given("task=gsm9k", "one of gsm8k, .*; did you mean 'gsm8k'.")),
    other("squad", "strategies=", given("strategies=", ".*at least 1 item.*")),
    other(
        "squad",
        "strategies=batches",
        given("strategies=batches", "one of batch, .*; did you mean 'batch'."),
    ),
    other(
        "squad",
        "strategies=batch,seqential",
        given("strategies=.*", "one of batch, .* 'sequential'."),
    ),
    other("squad", "max_train=0", given("max_train=0", ">= 1")),
    other("squad", "max_test=none", given("max_test=none", "a valid integer.*")),
    theorems("bm25=perhaps", given("bm25=perhaps", "a valid boolean.*")),
    theorems("max_length=-1", given("max_length=-1", ">= 4")),
    theorems("max_length=2", given("max_length=2", ">= 4")),
]
SETTINGS = [
    quickstart("finetune_embedder.epochs=0", given(r"finetune_embedder\.epochs=0", ">= 1")),
    quickstart(
        "finetune_embedder.epochs=1.5",
        given(r"finetune_embedder\.epochs=1\.5", "a valid integer.*"),
    ),
    quickstart(
        "finetune_embedder.learning_rate=0", given(r"finetune_embedder\.learning_rate=0", "> 0")
    ),
    quickstart(
        "finetune_embedder.learning_rate=fast", given(r"finetune_embedder\..*", "a valid number.*")
    ),
    quickstart("finetune_embedder.batch_size=0", given(r"finetune_embedder\.batch_size=0", ">= 2")),
    quickstart(
        "finetune_embedder.metric=foo", r"(step \S+: )?finetune_embedder\.metric: foo given"
    ),
    quickstart(
        "finetune_embedder.metric=map@0", r"(step \S+: )?finetune_embedder\.metric: map@0 given"
    ),
    quickstart("finetune_embedder.lora_r=-1", given(r"finetune_embedder\.lora_r=-1", ">= 1")),
    quickstart(
        "finetune_embedder.lora_dropout=1", given(r"finetune_embedder\.lora_dropout=1", "< 1")
    ),
    quickstart(
        "finetune_embedder.lr_scheduler_type=cosin", given(r"finetune_embedder\..*", ".* 'cosine'.")
    ),
    quickstart(
        "finetune_embedder.lr=1e-3", r"--set .*: step iter0/finetune_embedder has no setting 'lr'"
    ),
    quickstart("finetune_embeder.epochs=1", r"--set .*: no step matches 'finetune_embeder'"),
    quickstart("finetune_reranker.depth=1", given(r"finetune_reranker\.depth=1", ">= 2")),
    quickstart("mine.window=5", given(r"mine\.window=5", ".*")),
    quickstart("mine.window=a,b", given(r"mine\.window=a,b", "a valid integer.*")),
    quickstart("mine.window=9,3", r"(step \S+: )?mine\.window: .*"),
    quickstart("prepare.test_fraction=2", given(r"prepare\.test_fraction=2", "< 1")),
    quickstart("evaluate_retrieval.k=", given(r"evaluate_retrieval\.k=", ".*at least 1 item.*")),
    quickstart("evaluate_retrieval.k=0", given(r"evaluate_retrieval\.k=0", ">= 1")),
    quickstart(
        "evaluate_retrieval.tag=two words",
        r"(step \S+: )?evaluate_retrieval\.tag: 'two words' given",
    ),
    quickstart(
        "evaluate_retrieval.k=1,5",
        r"row 'BM25', column 'MAP@25': step bm25/evaluate reports no 'map@25'",
    ),
]
RESOURCES = [
    quickstart("embed.workers=0", given(r"embed\.workers=0", ">= 1")),
    quickstart("embed.workers=-1", given(r"embed\.workers=-1", ">= 1")),
    quickstart("embed.workers=many", given(r"embed\.workers=many", "a valid integer.*")),
    quickstart("embed.gpus=-1", given(r"embed\.gpus=-1", ">= 0")),
    quickstart("embed.cpus=0", given(r"embed\.cpus=0", "> 0")),
    quickstart("embed.memory=-1", given(r"embed\.memory=-1", ">= 0")),
    quickstart("embed.memory=nan", r"--set embed\.memory=nan: .*"),
    quickstart("embed.labels=foo", r"--set embed\.labels=foo: labels: 'foo' given"),
    quickstart("embed.labels==x", r"--set embed\.labels==x: labels: '=x' given"),
    quickstart("embed.labels=a=b,c", r"--set embed\.labels=a=b,c: labels: 'c' given"),
    quickstart("embed.placement=NEAR", given(r"embed\.placement=NEAR", "one of PACK, .*")),
    quickstart("embed.batch_tokens=0", given(r"embed\.batch_tokens=0", ">= 1")),
    quickstart("embed.timeout=0", given(r"embed\.timeout=0", "> 0")),
    quickstart("embed.retries=-1", given(r"embed\.retries=-1", ">= 0")),
    quickstart(
        "embed.worker=2", r"--set .*: step \S+ has no setting 'worker'; .*did you mean 'workers'\?"
    ),
    quickstart("embed.micro_batch_size=0", given(r"embed\.micro_batch_size=0", ">= 1")),
    Mistake(
        "more_workers_at_first",
        "plan quickstart --set base=base --set embed.workers=2 --set embed.min_workers=3",
        r"--set embed\.min_workers=3: min_workers 3 given",
        MODEL,
    ),
]


SIZES = [
    theorems(
        "finetune_embedder_pairs.batch_size=100000",
        r"batch_size: 100000 given, for \d+ pairs in an epoch, .*; lower batch_size, or .*",
    ),
    Mistake(
        "checkpoints after the last step",
        "plan countdown --set checkpoints=5000",
        r"checkpoints: 5000 given, of \d+ training steps in all",
    ),
    Mistake(
        "checkpoints after the last step of given tasks",
        "plan countdown --set data=t.jsonl --set checkpoints=50",
        r"checkpoints: 50 given, of \d+ training steps in all",
        {
            "t.jsonl": "".join(
                f'{{"nums": [{i}, 2], "target": {i + 2}, "solution": "{i} + 2"}}\n'
                for i in range(9, 40)
            )
        },
    ),
    Mistake(
        "a warm-up of more steps than there are",
        "plan countdown --set sft.warmup_steps=100000",
        r"warmup_steps: 100000 given, of \d+ steps in all",
    ),
    quickstart(
        "finetune_embedder.target_modules=nothing",
        r"finetune_embedder\.target_modules: 'nothing' given",
    ),
    quickstart("embed.labels=a=b,a=c", r"--set .*: labels: 'a=c' given"),
    quickstart("embed.memory=1e12", given(r"embed\.memory=1e12", "<= 100000")),
    quickstart("embed.workers=99999999999", given(r"embed\.workers=99999999999", "<= 100000")),
    Mistake(
        "as many pairs as a batch",
        "plan theorems --set data=papers.jsonl --set base=base",
        r"batch_size: 1024 given, for \d+ pairs in an epoch, .*",
        {"papers.jsonl": PAPERS, **MODEL},
    ),
    Mistake(
        "papers_in_two_files",
        "plan theorems --set data=papers.jsonl --set test=test.jsonl --set base=base",
        r"test\.jsonl:2: paper 'a3' is also papers\.jsonl:4",
        {"papers.jsonl": PAPERS, "test.jsonl": OTHERS, **MODEL},
    ),
    theorems("valid=~nobody-at-all/x", r"~nobody-at-all/x: not found"),
    theorems("valid=missing.jsonl", r"missing\.jsonl: not found"),
    Mistake("nul", "plan ./r.py", r"r\.py:1: a NUL byte given", {"r.py": b"a\0b"}),
    Mistake(
        "utf-16", "plan ./r.py", r"r\.py: UTF-16 given", {"r.py": "def r(): pass".encode("utf-16")}
    ),
    Mistake("empty", "plan ./r.py", r"r\.py: the file is empty", {"r.py": b""}),
]


@pytest.mark.slow
@mistakes.parametrize(PARAMETERS, SETTINGS, RESOURCES, SIZES)
def test_the_answer(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    mistakes.check(mistake, tmp_path, monkeypatch, capsys)
