"""Pairs and triplets in JSON Lines, CSV, Parquet and Arrow: the same rows give the same data in each."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from public_data import FOLDER, needs_public_data

from ratchet.data.formats.detection import load_retrieval
from ratchet.data.retrieval import RetrievalData
from ratchet.errors import DataError

Rows = list[dict[str, Any]]


def write_jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_csv(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: Rows) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_arrow(path: Path, rows: Rows) -> Path:
    """As `datasets` writes its cache: a stream, here of two batches."""
    table = pa.Table.from_pylist(rows)
    with path.open("wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=2):
            writer.write_batch(batch)
    return path


WRITERS: dict[str, Callable[[Path, Rows], Path]] = {
    "jsonl": write_jsonl,
    "csv": write_csv,
    "parquet": write_parquet,
    "arrow": write_arrow,
}
ROWS = [
    {"anchor": f"q {i}", "positive": f"p {i % 4}", "negative": f"p {i % 4 + 1}", "other": 1}
    for i in range(8)
]


def texts(data: RetrievalData) -> list[tuple[str, list[str], list[str]]]:
    """(query, positives, negatives) of each query."""
    text = {document.id: document.text for document in data.corpus}
    return [
        (q.text, [text[name] for name in q.positives], [text[name] for name in q.negatives])
        for q in data.queries
    ]


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_of_file_gives_the_same_data(kind: str, tmp_path: Path) -> None:
    data = load_retrieval(WRITERS[kind](tmp_path / f"x.{kind}", ROWS))
    assert texts(data) == [(f"q {i}", [f"p {i % 4}"], [f"p {i % 4 + 1}"]) for i in range(8)]
    assert [document.text for document in data.corpus] == [f"p {i}" for i in range(5)]


@pytest.mark.parametrize(
    ("query", "positive"),
    [("query", "pos"), ("question", "answer"), ("anchor", "document"), ("query", "positive")],
)
def test_columns_are_recognised_by_the_usual_names(
    query: str, positive: str, tmp_path: Path
) -> None:
    data = load_retrieval(
        write_jsonl(
            tmp_path / "x.jsonl", [{query: "a", positive: "x"}, {query: "b", positive: "y"}]
        )
    )
    assert texts(data) == [("a", ["x"], []), ("b", ["y"], [])]


@pytest.mark.parametrize("kind", WRITERS)
def test_other_columns_are_named_behind_the_path(kind: str, tmp_path: Path) -> None:
    rows = [
        {"the title": f"q {i}", "body": f"p {i}", "hard+1": "n", "query": "no", "hard_2": "m"}
        for i in range(3)
    ]
    file = WRITERS[kind](tmp_path / f"x.{kind}", rows)
    data = load_retrieval(file, "query=the title&positive=body&negative=hard%2B1&negative=hard_2")
    assert texts(data) == [(f"q {i}", [f"p {i}"], ["n", "m"]) for i in range(3)]


def test_negatives_may_be_lists_columns_or_missing(tmp_path: Path) -> None:
    rows = [
        {
            "query": "a",
            "positive": "x",
            "negative": ["l", "m"],
            "negative_1": "n",
            "negative_10": "o",
        },
        {
            "query": "b",
            "positive": ["x", "y"],
            "negative": None,
            "negative_1": "",
            "negative_10": "l",
        },
        {"query": "c", "positive": "z"},
    ]
    expected = [("a", ["x"], ["l", "m", "n", "o"]), ("b", ["x", "y"], ["l"]), ("c", ["z"], [])]
    assert texts(load_retrieval(write_jsonl(tmp_path / "x.jsonl", rows))) == expected
    rows[0]["negative"], rows[1]["positive"] = "m", "x"
    expected = [("a", ["x"], ["m", "n", "o"]), ("b", ["x"], ["l"]), ("c", ["z"], [])]
    assert texts(load_retrieval(write_parquet(tmp_path / "x.parquet", rows))) == expected


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_a_column_that_is_given_twice_is_refused(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"x.{kind}"
    table = pa.table(
        [["q"], ["first"], ["second"], ["o"], ["o"]], ["query", "positive", "positive", "", ""]
    )
    if kind == "csv":
        file.write_text("query,positive,positive,,\nq,first,second,o,o\n")
    elif kind == "parquet":
        pq.write_table(table, file)
    else:
        with file.open("wb") as opened, pa.ipc.new_stream(opened, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(
        DataError,
        match=r"x\.\w+(:1)?: column positive given twice; expected it once; remove or ren",
    ):
        load_retrieval(file)


def test_ids_groups_and_instructions_are_kept(tmp_path: Path) -> None:
    row = {
        "query": "a",
        "positive": "x",
        "id": 7,
        "group": "g",
        "task": "find",
        "reranker_prompt": "judge",
    }
    rows = [
        row,
        {
            "query": "b",
            "positive": "y",
            "id": "8",
            "group": None,
            "task": None,
            "reranker_prompt": None,
        },
    ]
    rows.append({"query": "c", "positive": "z", "id": " ", "group": "\t", "task": "  "})
    first, second, third = load_retrieval(write_jsonl(tmp_path / "x.jsonl", rows)).queries
    assert (first.id, first.group, first.task, first.prompt) == ("7", "g", "find", "judge")
    assert (second.id, second.group, second.task, second.prompt) == ("8", "b", "", "")
    assert (third.id, third.group, third.task) == ("q2", "c", "")


def test_rows_that_repeat_a_query_are_one_query(tmp_path: Path) -> None:
    """Apart, each would count the positives of the other as wrong."""
    rows = [
        {"query": "a", "positive": "x", "negative": "y"},
        {"query": "b", "positive": "x", "negative": "z"},
        {"query": "a", "positive": "y", "negative": "z"},
        {"query": "a", "positive": "x", "negative": "z"},
    ]
    data = load_retrieval(write_jsonl(tmp_path / "x.jsonl", rows))
    assert texts(data) == [("a", ["x", "y"], ["z"]), ("b", ["x"], ["z"])]
    assert data.queries[0].where == f"{tmp_path / 'x.jsonl'}:1"
    assert data.notes == {"rows that repeat a query, put together": 2}
    tasks = load_retrieval(
        write_jsonl(tmp_path / "y.jsonl", [row | {"task": str(n)} for n, row in enumerate(rows)])
    )
    assert len(tasks.queries) == 4, "another task is another query"


def test_a_folder_of_tables_is_read_in_the_order_of_the_names(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number, name in enumerate(
        ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001")
    ):
        write_parquet(tmp_path / "data" / f"{name}.parquet", ROWS[2 * number : 2 * number + 2])
    (tmp_path / "README.md").write_text("?")
    assert [query.text for query in load_retrieval(tmp_path, "split=train").queries] == [
        "q 0",
        "q 1",
        "q 2",
        "q 3",
    ]
    assert [query.text for query in load_retrieval(tmp_path).queries] == [
        f"q {i}" for i in (4, 5, 0, 1, 2, 3)
    ]


def broken(number: int, **changed: Any) -> Rows:
    rows = [{"query": f"q {i}", "positive": f"p {i}"} for i in range(5)]
    rows[number] = {
        name: value for name, value in (rows[number] | changed).items() if value != "missing"
    }
    return rows


MISTAKES = [
    (
        broken(2, positive="missing"),
        r"no column for the positive; found 'query'; expected positive or pos or answer or",
    ),
    (
        broken(2, query="missing"),
        r"no column for the query; found 'positive'; expected query or anchor or question",
    ),
    (broken(2, positive=" "), r"positive ' ' given; expected a text that is not empty"),
    (broken(2, positive=None), r"positive None given; expected a text"),
    (broken(2, positive=[]), r"positive \[\] given; expected a text"),
    (broken(2, positive=["a", 3]), r"positive 3 given; expected a text"),
    (broken(2, negative=["a", ""]), r"negative '' given; expected a text"),
    (broken(2, query=" "), r"query 'q2' has no text; expected some"),
    (broken(2, query=["a"]), r"field 'query' is list; expected str"),
    (broken(2, negative=["a", "p 2"]), r"query 'q 2' has 'p 2' as a positive and as a negative"),
    (broken(2, group=True), r"group True given; expected a text or a whole number"),
    (broken(2, id=1.5), r"id 1\.5 given; expected a text or a whole number"),
    (broken(2, task=["a"]), r"task \['a'\] given; expected a text"),
]


@pytest.mark.parametrize(("rows", "said"), MISTAKES)
def test_a_bad_row_is_named_with_its_line(rows: Rows, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"x\.jsonl:3: {said}.*; "):
        load_retrieval(write_jsonl(tmp_path / "x.jsonl", rows))


TABLES: list[tuple[Rows, str]] = [
    (
        [{"query": "a", "positive": "x"}, {"query": "b", "positive": None}],
        r": row 2: positive None given",
    ),
    (
        [{"query": "a", "positive": "x"}, {"query": None, "positive": "y"}],
        r": row 2: field 'query' is NoneType",
    ),
    ([{"query": 1, "positive": "x"}], r": row 1: field 'query' is int; expected str"),
    (
        [{"title": "a", "positive": "x"}],
        r": row 1: no column for the query; found 'title, positive'; .* '\?query=title&positive=positive'",
    ),
]


@pytest.mark.parametrize(("rows", "said"), TABLES)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_bad_row_of_a_table_is_named_with_its_number(
    kind: str, rows: Rows, said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=rf"x\.{kind}{said}"):
        load_retrieval(WRITERS[kind](tmp_path / f"x.{kind}", rows))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_damaged_table_is_named(kind: str, tmp_path: Path) -> None:
    file = WRITERS[kind](tmp_path / f"x.{kind}", ROWS)
    file.write_bytes(file.read_bytes()[: -file.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"x\.{kind}: cannot be read .*; expected a com"):
        load_retrieval(file)


OPTIONS = [
    (
        "qurey=title",
        r"'qurey=title' given behind the path; expected some of query, positive, .* template, each with one",
    ),
    ("title", r"'title=' given"),
    ("query=", r"'query=' given"),
    ("query=a&query=b", r"'query=a&b' given"),
    (
        "query=query&template={query}",
        "query and template given behind the path; expected one of the two",
    ),
    (
        "template={titel}",
        r"x\.jsonl:1: no column for the query; found .*; expected titel; rename one, or name it",
    ),
    ("template=title", r"x\.jsonl:1: template 'title' given; expected some of .* in braces"),
    (
        "query=titel",
        r"x\.jsonl:1: no column for the query; found .*; expected titel; rename one, or name it",
    ),
]


@pytest.mark.parametrize(("options", "said"), OPTIONS)
def test_options_that_mean_nothing_are_refused(options: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        load_retrieval(write_jsonl(tmp_path / "x.jsonl", ROWS), options)


def test_a_template_makes_queries_of_several_columns(tmp_path: Path) -> None:
    rows = [
        {"title": "Rome", "year": 1871, "body": "A capital."},
        {"title": "Faust", "year": None, "body": "A play."},
    ]
    expected = ["Rome\n(1871) of {Rome}", "Faust\n() of {Faust}"]
    table = pa.table({name: [row[name] for row in rows] for name in rows[0]})
    pq.write_table(table, tmp_path / "x.parquet")
    for path in (write_jsonl(tmp_path / "x.jsonl", rows), tmp_path / "x.parquet"):
        data = load_retrieval(path, r"template={title}\n({year}) of {{title}}&positive=body")
        assert [query.text for query in data.queries] == expected
        assert [document.text for document in data.corpus] == ["A capital.", "A play."]


def test_columns_of_formats_that_have_their_own_are_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "corpus.jsonl", [{"_id": "a", "text": "x"}, {"_id": "b", "text": "y"}])
    write_jsonl(tmp_path / "queries.jsonl", [{"_id": "q", "text": "z"}])
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/train.tsv").write_text("q\ta\t1\n")
    with pytest.raises(
        DataError, match=r"'\?query=' given; expected no columns for BEIR; leave it out"
    ):
        load_retrieval(tmp_path, "query=title")
    assert load_retrieval(tmp_path, "name=x").queries[0].id == "q"


NAMES = st.text("abc", min_size=1, max_size=2)
PAIRS = st.lists(st.tuples(NAMES, NAMES, st.lists(NAMES, max_size=2)), min_size=1, max_size=12)


@settings(max_examples=40)
@given(PAIRS)
def test_pairs_are_a_relation_between_texts(
    tmp_path_factory: pytest.TempPathFactory, pairs: Any
) -> None:
    """The data says: which texts are there, which are positive for a query, and which only negative."""
    file = tmp_path_factory.getbasetemp() / "relation.jsonl"
    extra = ("zz", "yy", [])  # two documents at least
    rows = []
    for q, p, n in [*pairs, extra]:
        rows.append({"query": q, "positive": p, "negative": [text for text in n if text != p]})
    found = texts(load_retrieval(write_jsonl(file, rows)))
    positives = {q: {p for other, p, _ in pairs if other == q} for q, _, _ in pairs}
    negatives = {
        q: {name for other, _, n in pairs if other == q for name in n} - positives[q]
        for q in positives
    }
    assert {q: set(p) for q, p, _ in found[:-1]} == positives
    assert {q: set(n) for q, _, n in found[:-1]} == negatives
    assert all(len(set(names)) == len(names) for _, p, n in found for names in (p, n))


@needs_public_data
def test_real_pairs_are_those_of_flag_embeddings_reader(tmp_path: Path) -> None:
    given_file = FOLDER / "eedi/hn_mine_input.jsonl"
    rows = [json.loads(line) for line in given_file.open()]
    theirs = load_retrieval(given_file)
    named = [{"question": r["query"], "answer": r["pos"][0], "prompt": r["prompt"]} for r in rows]
    ours = load_retrieval(write_parquet(tmp_path / "x.parquet", named))
    relation = {(q, p) for q, positives, _ in texts(theirs) for p in positives}
    assert {(q, p) for q, positives, _ in texts(ours) for p in positives} == relation
    assert len(ours.queries) == len({q for q, _ in relation})
    assert {q.task for q in ours.queries} == {q.task for q in theirs.queries}


@pytest.mark.parametrize("positive", ["positive", "pos"])
def test_rows_that_repeat_a_query_have_one_group(tmp_path: Path, positive: str) -> None:
    rows: list[dict[str, Any]] = [
        {"query": f"q {n // 2}", positive: [f"p {n}"], "group": f"g {n // 4}"} for n in range(8)
    ]
    del rows[2]["group"]
    write_jsonl(path := tmp_path / "x.jsonl", rows)
    assert [query.group for query in load_retrieval(path).queries] == ["g 0", "g 0", "g 1", "g 1"]
    rows[5]["group"] = "g 7"
    write_jsonl(path, rows)
    with pytest.raises(
        DataError, match=r"x\.jsonl:6: group 'g 7' given for a query that has group 'g 1' at .*:5"
    ):
        load_retrieval(path)
