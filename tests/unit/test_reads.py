"""A job reads only what is hashed: files beside the user's data, or in a model's folder, do not decide its result.

What is read is seen in two ways: by the time of the last access, which every way of reading changes, and by Python's
audit events, for files elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import read_data
from published_runs import write_data

from ratchet.data.formats.flag_embedding import write_lines
from ratchet.models.decoder import decoder
from ratchet.models.embedder import encoder
from ratchet.models.reranker import reranker
from ratchet.models.reranker.reranker_config import RerankerConfig
from ratchet.orchestrator import recipe
from ratchet.orchestrator.job_interface import Context, Source
from ratchet.orchestrator.job_interface.source_digest import list_files
from ratchet.orchestrator.plan import Plan
from ratchet.orchestrator.store import Store
from ratchet.recipes.parts.models import choose_model

PAIRS = [(f"What is {number} + 1?", f"It is {number + 1}.") for number in range(40)]
BESIDE = [
    "candidate_pool.jsonl",
    "corpus.jsonl",
    "queries.jsonl",
    "task.json",
    "README.md",
    ".hidden",
]
VERIFIER = "def verify(gold, answers):\n    return answers[-1] == gold\n"
NUMBERS = [{"nums": [number, 1], "target": number + 1} for number in range(1, 60)]

opened: list[Path] | None = None


def note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and opened is not None and isinstance(arguments[0], str | os.PathLike):
        opened.append(Path(os.path.abspath(arguments[0])))


sys.addaudithook(note_opened)


@contextmanager
def watch(folder: Path) -> Iterator[set[Path]]:
    """Collect the files below a folder that are read, and those elsewhere that Python opens."""
    global opened
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        os.utime(path, (0, path.stat().st_mtime))
    found: set[Path] = set()
    opened = []
    try:
        yield found
    finally:
        elsewhere, opened = opened, None
        found.update(path for path in files if path.stat().st_atime)
        found.update(elsewhere)


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, ...]:
    """Folders whose files may be opened: those of Python, of the system, of Ratchet, and of the step."""
    checkout = Path(recipe.__file__).resolve().parents[2]
    folders = [sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", "/etc", "/usr", checkout]
    folders += [tmp_path / "store", tmp_path / "step-work", *map(Path, sys.path)]
    folders += [Path.home() / ".cache", *tmp_path.glob("step-out-*")]
    return tuple(f"{folder}/" for folder in folders)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Files of each format, each beside all others and beside files of names that formats know."""
    folder = tmp_path / "data"
    (folder / "beir" / "qrels").mkdir(parents=True)
    write_data(folder)
    table = "".join(f"{query},{positive}\n" for query, positive in PAIRS)
    (folder / "pairs.csv").write_text("query,positive\n" + table)
    corpus = [{"_id": f"d{number}", "text": text} for number, (_, text) in enumerate(PAIRS)]
    queries = [{"_id": f"q{number}", "text": text} for number, (text, _) in enumerate(PAIRS)]
    labels = [f"q{number}\td{number}\t1\n" for number in range(len(PAIRS))]
    write_lines(folder / "beir" / "corpus.jsonl", corpus)
    write_lines(folder / "beir" / "queries.jsonl", queries)
    (folder / "beir" / "qrels" / "all.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(labels)
    )
    (folder / "mine.py").write_text(VERIFIER)
    chats = []
    for query, positive in PAIRS:
        turn = [{"role": "user", "content": query}, {"role": "assistant", "content": positive}]
        chats.append({"messages": turn})
    write_lines(folder / "chats.jsonl", chats)
    write_lines(folder / "numbers.jsonl", NUMBERS)
    for name in BESIDE:
        (folder / name).write_text('{"id": "x", "text": "another"}\n')
    return folder


def test_the_time_of_the_last_access_tells(tmp_path: Path) -> None:
    """Without it the tests below could not fail."""
    for name in ("read", "unread"):
        (tmp_path / name).write_text("x")
    with watch(tmp_path) as found:
        (tmp_path / "read").read_text()
    assert tmp_path / "read" in found
    assert tmp_path / "unread" not in found


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("retrieval", "pairs.csv"),
        ("retrieval", "train.jsonl"),
        ("retrieval", "beir"),
        ("papers", "papers.jsonl"),
        ("gsm8k", "gsm8k.jsonl"),
        ("squad-batch", "squad.json"),
        ("countdown", "numbers.jsonl"),
        ("chat", "chats.jsonl"),
    ],
)
def test_data_is_read_from_what_is_hashed(
    kind: str,
    name: str,
    data: Path,
    tmp_path: Path,
    context: Callable[[], Context],
    own: tuple[str, ...],
) -> None:
    lines = [f"kind={kind}", f"data={data / name}"]
    if kind == "chat":
        lines.append(f"verifier_file={data / 'mine.py'}")
    store = Store.open(tmp_path / "store")
    steps = recipe.build(recipe.find(read_data.__file__), recipe.Settings.read(lines), store)[0]
    step = steps[0]
    hashed: set[Path] = set()
    for _, source in step.references():
        assert isinstance(source, Source)
        hashed.update(path for _, path in list_files(source))
    plan = Plan(steps, store)
    given = context()
    own = (*own, f"{given.out}/")
    with watch(data) as found:
        plan.check()
        step.job.run(given, step.config, plan.inputs(step.name, verified=True))
    read = {path for path in found if not f"{path}/".startswith(own) and path.is_file()}
    assert read == hashed


@pytest.mark.parametrize("kind", ["embedder", "decoder", "reranker"])
def test_models_are_read_from_what_is_hashed(
    kind: str, tiny: dict[str, Path], tmp_path: Path, own: tuple[str, ...]
) -> None:
    from shutil import copytree

    base = tiny["bert"] if kind == "embedder" else tiny["qwen2"]
    folder = copytree(base, tmp_path / "model")
    beside = ["README.md", "optimizer.pt", "onnx/model.onnx", ".hidden", "../adapter_config.json"]
    for name in [*beside, "../chat_template.jinja", "../modules.json", "../tokenizer.json"]:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    source = choose_model(str(folder))
    assert isinstance(source, Source)
    hashed = {path for _, path in list_files(source)}
    options: dict[str, Any] = {}
    if kind == "reranker":
        options["reranker_config"] = RerankerConfig(
            "yes_no", 64, None, "w1{text}", "w2{text}", "w", "w3w3", answer="w", against="9"
        )
    load: Any = {"embedder": encoder, "decoder": decoder, "reranker": reranker}[kind].load
    with watch(tmp_path) as found:
        load(folder, dtype="float32", device="cpu", **options)
    read = {path for path in found if not f"{path}/".startswith(own) and path.is_file()}
    assert folder / "config.json" in read
    assert read <= hashed
