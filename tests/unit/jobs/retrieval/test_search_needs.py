"""Needs of steps that rank documents: ids, hashes, BM25's index, and the texts that `mine` writes."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from pathlib import Path

import pytest

from ratchet.data import tables
from ratchet.jobs import planned_rows
from ratchet.jobs.retrieval import evaluate_retrieval, mine
from ratchet.jobs.retrieval.ranking import Worker
from ratchet.orchestrator.cli.main import main
from ratchet.orchestrator.job_interface import Resources, Result

ROWS = 120_000
WORDS = [f"word{number}" for number in range(2000)]


def write_text(number: int) -> str:
    return " ".join(random.Random(number).choices(WORDS, k=25))


def test_bm25_takes_what_is_estimated(tmp_path: Path) -> None:
    """Beside 10 MB that do not depend on the number of documents."""
    documents = [{"id": str(n), "text": write_text(n)} for n in range(20_000)]
    tables.write_shards(tmp_path, iter(documents), tables.CORPUS, 4096)
    config = evaluate_retrieval.Config(system="bm25")
    inputs = evaluate_retrieval.Inputs(tmp_path, tmp_path)
    tracemalloc.start()
    try:
        Worker(config, inputs, "cpu")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    characters = sum(len(document["text"]) for document in documents)
    expected = planned_rows.SEARCH_ROW * len(documents) + planned_rows.BM25_CHARACTER * characters
    assert expected / 3 < peak < expected + 1e7


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of pairs, each with a document of its own."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    with path.open("w") as file:
        for number in range(ROWS):
            row = {"query": f"query {number}", "pos": [f"document {number} {'x' * 200}"]}
            file.write(json.dumps(row) + "\n")
    return str(path)


def test_a_plan_counts_searches_of_large_data(
    pairs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--store", str(tmp_path / "store"), "--set", f"data={pairs}"]
    assert main(["plan", "retriever", *words, "--set", "prepare.max_held_out=500"]) == 0
    shown = capsys.readouterr().out
    memory = {}
    disk = {}
    for line in shown.splitlines():
        name = line.split()[0]
        for found, word in ((memory, "memory"), (disk, "disk")):
            number = re.search(rf"{word} ([\d.]+) GB", line)
            if number:
                found[name] = float(number[1])
    assert memory["zero_shot/evaluate"] >= 0.6
    assert memory["iter0/mine"] >= 0.6
    assert memory["bm25/evaluate"] >= memory["zero_shot/evaluate"] + 0.2
    assert "zero_shot/embed_corpus" in disk
    # 500 queries, of 384 float32 each: less than 0.05 GB.
    assert "zero_shot/embed_test" not in disk
    # The texts of some 100,000 positives and 15 negatives for each.
    assert 0.2 < disk["iter0/mine"] < 0.5


def test_a_small_search_is_not_counted() -> None:
    known = Result({"documents": 1000, "train/queries": 800, "characters": 10**5})
    parents = {"queries": Result(known.metrics, part="train"), "corpus": known}
    inputs = mine.Inputs(*4 * [Path("missing")])
    assert mine.estimate_needs(mine.Config(), inputs, Resources(1), parents) is None
    larger = Result({**known.metrics, "documents": 10**6})
    found = mine.estimate_needs(mine.Config(), inputs, Resources(1), {**parents, "corpus": larger})
    assert found is not None
    assert found.memory > 0.62
    assert found.disk == pytest.approx(800 * 16 * 0.1 / 1e9)


def test_bm25_needs_more_than_vectors() -> None:
    known = Result({"documents": 5_000_000, "characters": 10**9}, part="corpus")
    inputs = evaluate_retrieval.Inputs(Path("missing"), Path("missing"))
    memory = {}
    for system in ("dense", "bm25"):
        config = evaluate_retrieval.Config(system=system)  # type: ignore[arg-type]
        found = evaluate_retrieval.estimate_needs(config, inputs, Resources(1), {"corpus": known})
        assert found is not None
        memory[system] = found.memory
    assert memory["bm25"] - memory["dense"] == pytest.approx(10.0)
