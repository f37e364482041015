"""Queries without labels, for predictions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from public_data import FOLDER, needs_public_data

from ratchet.data.formats import eedi
from ratchet.data.formats.detection import load_queries, load_retrieval
from ratchet.errors import DataError

TEST_HEADER = (
    "QuestionId,ConstructId,ConstructName,SubjectId,SubjectName,CorrectAnswer,QuestionText,"
    "AnswerAText,AnswerBText,AnswerCText,AnswerDText\n"
)


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def parquet(path: Path, **columns: list[Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def beir(folder: Path) -> Path:
    lines(folder / "corpus.jsonl", {"_id": "d0", "text": "text"})
    return lines(
        folder / "queries.jsonl", {"_id": "a", "text": "one"}, {"_id": "b", "text": "two"}
    ).parent


FILES: list[tuple[Callable[[Path], Path], list[tuple[str, str]]]] = [
    (
        lambda p: lines(p / "x.jsonl", {"query": "one"}, {"query": "two"}),
        [("q0", "one"), ("q1", "two")],
    ),
    (
        lambda p: lines(p / "x.jsonl", {"query": "one"}, {"query": "one"}),
        [("q0", "one"), ("q1", "one")],
    ),
    (lambda p: lines(p / "x.jsonl", {"id": 7, "text": "one"}), [("7", "one")]),
    (
        lambda p: lines(p / "x.jsonl", {"query": "one", "pos": ["a"]}, {"query": "two"}),
        [("q0", "one"), ("q1", "two")],
    ),
    (lambda p: lines(p / "x.jsonl", {"query": "one", "positive": 3}), [("q0", "one")]),
    (lambda p: text(p / "x.txt", "one\n\n two\r\n"), [("q0", "one"), ("q1", "two")]),
    (
        lambda p: text(p / "x.csv", 'id,text\n5,"one,\n1"\n6,two\n'),
        [("5", "one,\n1"), ("6", "two")],
    ),
    (
        lambda p: parquet(p / "x.parquet", _id=["a", "b"], query=["one", "two"]),
        [("a", "one"), ("b", "two")],
    ),
    (beir, [("a", "one"), ("b", "two")]),
]


@pytest.mark.parametrize(("make", "expected"), FILES)
def test_queries_need_no_labels(
    make: Callable[[Path], Path], expected: list[tuple[str, str]], tmp_path: Path
) -> None:
    queries = load_queries(make(tmp_path))
    assert [(query.id, query.text) for query in queries] == expected
    assert not any(query.positives or query.negatives for query in queries)


@pytest.mark.parametrize("folder", [True, False])
def test_every_wrong_answer_of_eedis_test_file_is_a_query(tmp_path: Path, folder: bool) -> None:
    file = text(tmp_path / "test.csv", TEST_HEADER + '3,1,Add,2,Sums,B,"What is\n1+1?",1,2,3,4\n')
    queries = load_queries(tmp_path if folder else file)
    assert [query.id for query in queries] == ["3_A", "3_C", "3_D"]
    assert queries[1].text == eedi.format_query("What is\n1+1?", "Add", "2", "3")


def test_options_say_how_queries_are_read(tmp_path: Path) -> None:
    file = text(tmp_path / "x.csv", "title,year\nRome,1999\n")
    (query,) = load_queries(file, "template={title} ({year})&instruction=Find it")
    assert (query.text, query.task) == ("Rome (1999)", "Find it")
    assert load_queries(file, "query=title")[0].text == "Rome"
    given = text(tmp_path / "test.csv", TEST_HEADER + "3,1,Add,2,Sums,B,What?,1,2,3,4\n")
    assert load_queries(given, "template={SubjectName}: {WrongAnswerText}")[1].text == "Sums: 3"
    with pytest.raises(
        DataError, match=r"x\.txt:1: no column for the query; found 'query'; expected title; rename"
    ):
        load_queries(text(tmp_path / "x.txt", "Rome\n"), "template={title}")


def test_the_column_of_texts_may_have_any_name(tmp_path: Path) -> None:
    file = text(tmp_path / "docs.csv", "sku,body\na1,hello\na2,there\n")
    for options in ("id=sku&text=body", "id=sku&query=body"):
        found = load_queries(file, options)
        assert [(one.id, one.text) for one in found] == [("a1", "hello"), ("a2", "there")]
    with pytest.raises(DataError, match="query=sku&body' given behind the path"):
        load_queries(file, "text=body&query=sku")


def test_instructions_of_flag_embedding_come_along(tmp_path: Path) -> None:
    row = {"query": "one", "prompt": "find", "reranker_prompt": "judge"}
    (query,) = load_queries(lines(tmp_path / "x.jsonl", row))
    assert (query.task, query.prompt) == ("find", "judge")


REFUSED: list[tuple[Callable[[Path], Path], str]] = [
    (
        lambda p: lines(p / "x.jsonl", {"query": "one"}, {"title": "two"}),
        r"x\.jsonl:2: no column for the query",
    ),
    (
        lambda p: lines(p / "x.jsonl", {"query": "one"}, {"query": " "}),
        r"x\.jsonl:2: query 'q1' has no text",
    ),
    (
        lambda p: lines(p / "x.jsonl", {"query": 5}),
        r"x\.jsonl:1: field 'query' is int; expected str",
    ),
    (
        lambda p: lines(p / "x.jsonl", {"id": 1, "query": "a"}, {"id": 1, "query": "a"}),
        r"x\.jsonl:2: query id '1' is also",
    ),
    (
        lambda p: text(p / "x.csv", "id,title\n1,a\n"),
        r"x\.csv:2: no column for the query; found 'id, title'",
    ),
    (lambda p: text(p / "x.txt", "\n\n"), r"x\.txt: only blank lines"),
    (
        lambda p: parquet(p / "x.parquet", query=["a", None]),
        r"x\.parquet: row 2: field 'query' is NoneType",
    ),
    (
        lambda p: text(p / "test.csv", TEST_HEADER + "3,1,Add,2,Sums,B,What?,1,2,,4\n"),
        r"csv:2: AnswerCText is empty",
    ),
    (lambda p: text(p / "x.pdf", "a"), r"x\.pdf: no known format"),
    (lambda p: p / "none", "none: no such file"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_a_file_that_cannot_be_queries_is_refused(
    make: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        load_queries(make(tmp_path))


def test_text_files_are_queries_and_never_training_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x\.txt: no known format"):
        load_retrieval(text(tmp_path / "x.txt", "one\n"))


@needs_public_data
def test_eedi_without_labels_has_the_labelled_queries_too() -> None:
    found = {query.id: query.text for query in load_queries(FOLDER / "eedi")}
    assert len(found) == 3 * 1869
    assert {
        query.id: query.text for query in load_retrieval(FOLDER / "eedi").queries
    }.items() <= found.items()
