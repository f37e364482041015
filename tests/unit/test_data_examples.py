"""The examples in `docs/data.md` are valid files, and those in `examples/` are as their script writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.misconceptions.documents import write_documents
from ratchet.data.formats.detection import load_queries, load_retrieval
from ratchet.data.formats.papers import read_papers
from ratchet.jobs.retrieval.datasets import find_datasets
from ratchet.jobs.retrieval.prepare import Config, Inputs
from ratchet.jobs.retrieval.splits import load_data

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/data.md").read_text()
FILES = dict(
    re.findall(r"^`([\w./]+)`[^\n]*\n\n```[a-z]+\n(.*?)```$", TEXT, re.DOTALL | re.MULTILINE)
)
ANSWERS = {"Rome has been the capital of Italy since 1871.", "Goethe wrote Faust."}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def test_all_examples_are_found() -> None:
    assert len(FILES) == 9


@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs.csv", "flag.jsonl", "beir"])
def test_the_formats_say_the_same(name: str, folder: Path) -> None:
    data = load_retrieval(folder / name)
    text = {document.id: document.text.removeprefix("Rome\n") for document in data.corpus}
    assert {text[query.positives[0]] for query in data.queries} == ANSWERS
    assert [query.text for query in load_queries(folder / name)] == [
        query.text for query in data.queries
    ]
    assert [query.text for query in load_queries(folder / "queries.txt")] == [
        query.text for query in data.queries
    ]


def test_the_papers_are_read(folder: Path) -> None:
    papers = list(read_papers(folder / "papers.jsonl"))
    assert [(paper.id, len(paper.statements)) for paper in papers] == [
        ("2101.00001", 3),
        ("2101.00002", 2),
    ]


def test_columns_are_named_behind_the_path(folder: Path) -> None:
    given = f"{folder / 'titles.jsonl'}?query=title&positive=body"
    values = find_datasets(given, test=str(folder / "beir"))
    paths = {
        name: tuple(source.path for source in values[name]) for name in ("data", "valid", "test")
    }
    data = load_data(Config(reading=values["reading"]), Inputs(**paths))
    assert [query.split for query in data.queries] == [None] * 2 + ["test"] * 2
    assert [query.id for query in data.queries] == ["0/q0", "0/q1", "q1", "q2"]


def test_the_example_documents_are_as_written(tmp_path: Path) -> None:
    write_documents(tmp_path)
    made = {}
    kept = {}
    for found, folder in ((made, tmp_path), (kept, ROOT / "examples")):
        for file in (*folder.glob("documents/*"), folder / "queries.jsonl"):
            found[file.name] = file.read_text("utf-8")
    assert made == kept
    assert sum(len(text.encode()) for text in kept.values()) < 100_000
    pages = {name: text for name, text in kept.items() if name.endswith(".md")}
    queries = [json.loads(line) for line in kept["queries.jsonl"].splitlines()]
    assert {query["document"] for query in queries} == pages.keys()
    texts = [query["query"] for query in queries]
    assert len(set(texts)) == len(texts)
    assert not [text for text in texts if text in "".join(pages.values())], "examples of a page"
