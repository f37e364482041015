"""Mistakes in the content of retrieval data, papers and JSON in general."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import read_data
from mistakes import Mistake, check, parametrize

FLAG, PAPERS = (
    f"{read_data.COMMAND}retrieval --set data=f.jsonl",
    f"{read_data.COMMAND}papers --set data=p.jsonl",
)
BEIR, EEDI = (
    f"{read_data.COMMAND}retrieval --set data=b",
    f"{read_data.COMMAND}retrieval --set data=e",
)


def lines(*rows: Any) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def flag(name: str, row: Any, answer: str) -> Mistake:
    """A mistake in line 2 of FlagEmbedding's JSONL."""
    good = [{"query": f"q {i}", "pos": [f"p {i}"], "neg": [f"p {i + 1}"]} for i in range(20)]
    return Mistake(
        f"flag: {name}", FLAG, rf"f\.jsonl:2: {answer}", {"f.jsonl": lines(good[0], row, *good[2:])}
    )


NAN = r"is no finite number\)"
JSON = [
    flag("truncated", '{"query": "q", "po', r"not JSON \(.*\)"),
    flag("100,000 brackets", "[" * 100_000, r"not JSON \(maximum recursion depth .*\)"),
    flag("100,000 objects", '{"a":' * 100_000, r"not JSON \(maximum recursion depth .*\)"),
    flag("NaN", '{"query": "q", "pos": ["p"], "score": NaN}', rf"not JSON \(NaN {NAN}"),
    flag(
        "Infinity", '{"query": "q", "pos": ["p"], "score": Infinity}', rf"not JSON \(Infinity {NAN}"
    ),
    flag(
        "-Infinity",
        '{"query": "q", "pos": ["p"], "score": -Infinity}',
        rf"not JSON \(-Infinity {NAN}",
    ),
    flag("a huge integer", '{"query": ' + "9" * 5000 + "}", r"not JSON \(Exceeds the limit .*\)"),
    flag(
        "half a surrogate",
        r'{"query": "\ud800", "pos": ["p"]}',
        r"not JSON \(.*surrogates not allowed\)",
    ),
    flag(
        "the other half",
        r'{"query": "a\uDC00b", "pos": ["p"]}',
        r"not JSON \(.*surrogates not allowed\)",
    ),
    flag("half a surrogate in a key", r'{"\udfff": 1}', r"not JSON \(.*surrogates not allowed\)"),
    flag(
        "a field twice",
        '{"query": "a", "query": "b", "pos": ["p"]}',
        r"not JSON \(a field is given twice in one object\)",
    ),
    flag("single quotes", "{'query': 'q'}", r"not JSON \(.*property name.*\)"),
    flag("a trailing comma", '{"query": "q",}', r"not JSON \(.*\)"),
    flag("two objects on a line", '{"a": 1} {"b": 2}', r"not JSON \(Extra data.*\)"),
    flag("a list", ["q"], r"not as for texts without names: .*"),
    flag("a number", "7", r"int given"),
    flag("null", "null", r"NoneType given"),
    flag("a text", '"q"', r"str given"),
    flag("a mark within the file", "\ufeff{}", r"not JSON \(.*\)"),
    flag("a NUL byte", '{"query": "q\0"}', r"a NUL byte given"),
    flag("a control character", '{"query": "q\x01"}', r"not JSON \(Invalid control character.*\)"),
]

FLAGS = [
    flag("no query", {"pos": ["p"]}, r"no column for the query; found 'pos'"),
    flag("no pos", {"query": "q"}, r"no column for the positive; found 'query'"),
    flag("an empty object", {}, r"no column for the query; found ''"),
    flag("an empty query", {"query": " ", "pos": ["p"]}, r"query 'q1' has no text"),
    flag("empty pos", {"query": "q", "pos": []}, r"positive \[\] given"),
    flag("query is a number", {"query": 1, "pos": ["p"]}, r"field 'query' is int"),
    flag("query is null", {"query": None, "pos": ["p"]}, r"field 'query' is NoneType"),
    flag("a pos is null", {"query": "q", "pos": [None]}, r"positive None given"),
    flag("a pos is blank", {"query": "q", "pos": [" "]}, r"positive ' ' given"),
    flag(
        "a neg is a list", {"query": "q", "pos": ["p"], "neg": [["n"]]}, r"negative \['n'\] given"
    ),
    flag(
        "pos is neg",
        {"query": "q", "pos": ["p"], "neg": ["p"]},
        r"query 'q' has 'p' as a positive and .*",
    ),
    flag(
        "pos_scores alone",
        {"query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": [1]},
        r"field 'neg_scores' has 0 scores for 1 texts",
    ),
    flag(
        "too few scores",
        {"query": "q", "pos": ["p", "r"], "pos_scores": [1]},
        r".* has 1 scores for 2 texts",
    ),
    flag("a score is a text", {"query": "q", "pos": ["p"], "pos_scores": ["1"]}, r".* holds '1'"),
    flag("a score is true", {"query": "q", "pos": ["p"], "pos_scores": [True]}, r".* holds True"),
    flag(
        "a score of 1e300", {"query": "q", "pos": ["p"], "pos_scores": [1e300]}, r".* holds 1e\+300"
    ),
    flag(
        "a score of 1e999", '{"query": "q", "pos": ["p"], "pos_scores": [1e999]}', r".* holds inf"
    ),
    flag(
        "a score of 400 digits",
        {"query": "q", "pos": ["p"], "pos_scores": [10**400]},
        r".* holds 1.*",
    ),
    flag("prompt is a list", {"query": "q", "pos": ["p"], "prompt": []}, r"task \[\] given"),
    *(
        Mistake(
            f"flag: {count} queries",
            FLAG,
            rf"f\.jsonl: {count} queries in {count} groups leave none for valid",
            {
                "f.jsonl": lines(
                    *({"query": f"q {i}", "pos": [f"p {i}"], "neg": ["n"]} for i in range(count))
                )
            },
        )
        for count in (3,)
    ),
    *(
        Mistake(
            f"flag: {count} queries",
            FLAG,
            rf"f\.jsonl: {count} queries in {count} groups leave none for .*",
            {
                "f.jsonl": lines(
                    *({"query": f"q {i}", "pos": [f"p {i}"], "neg": ["n"]} for i in range(count))
                )
            },
        )
        for count in (1, 2)
    ),
    Mistake(
        "flag: one document",
        FLAG,
        r"f\.jsonl: 1 documents in the corpus",
        {"f.jsonl": lines(*({"query": f"q {i}", "pos": ["p"]} for i in range(9)))},
    ),
]


def beir(name: str, answer: str, **changed: str | None) -> Mistake:
    """A mistake in a BEIR folder. changed: name of a file with _ for the dot -> its content; None: no such file."""
    files: dict[str, str | None] = {
        "corpus_jsonl": lines(
            *({"_id": f"d{i}", "title": "t", "text": f"text {i}"} for i in range(5))
        ),
        "queries_jsonl": lines(*({"_id": f"q{i}", "text": f"query {i}"} for i in range(20))),
        "train_tsv": "query-id\tcorpus-id\tscore\n"
        + "".join(f"q{i}\td{i % 5}\t1\n" for i in range(20)),
    } | changed
    found = {
        f"b/{'qrels/' if file.endswith('tsv') else ''}{file.replace('_', '.')}": content
        for file, content in files.items()
        if content is not None
    }
    return Mistake(f"beir: {name}", BEIR, answer, found)


ROW = "q0\td0\t1\n"
BEIRS = [
    beir("no corpus", r"b/corpus\.jsonl: no such file", corpus_jsonl=None),
    beir("no queries", r"b/queries\.jsonl: no such file", queries_jsonl=None),
    beir("no qrels", r"b/qrels: no \.tsv file in it", train_tsv=None),
    beir(
        "header only",
        r"b: no query has a document of the corpus with a score of 1 or more in qrels",
        train_tsv="query-id\tcorpus-id\tscore\n",
    ),
    beir(
        "scores of 0",
        r"b: no query has a document of the corpus with a score of 1 or more in qrels",
        train_tsv="q0\td0\t0\n",
    ),
    beir(
        "scores below 0",
        r"b: no query has a document of the corpus with a score of 1 or more in qrels",
        train_tsv="q0\td0\t-1\n",
    ),
    beir("only dev", r"b/qrels/dev\.tsv: only queries for valid", train_tsv=None, dev_tsv=ROW),
    beir("unknown split", r"b/qrels/more\.tsv: split 'more' given", more_tsv=ROW),
    beir(
        "all and others",
        r"b/qrels/train\.tsv:2: query id 'q0' is also at b/qrels/all\.tsv:1",
        all_tsv=ROW,
    ),
    beir(
        "a query in train and test",
        r"b/qrels/train\.tsv:2: query id 'q0' is also at b/qrels/test\.tsv:1",
        test_tsv=ROW,
    ),
    beir(
        "contradicting scores",
        r"b/qrels/train\.tsv:2: query 'q0' and document 'd0' have score 0, and 1 in a row above",
        train_tsv="q0\td0\t1\nq0\td0\t0\n",
    ),
    beir(
        "unknown query",
        r"b/qrels/train\.tsv:1: query 'q99' is not in queries\.jsonl",
        train_tsv="q99\td0\t1\n",
    ),
    beir(
        "unknown document",
        r"b: no query has a document of the corpus with a score of 1 or more in qrels",
        train_tsv="q0\tx\t1\n",
    ),
    beir("a column too few", r"b/qrels/train\.tsv:2: 'q1\\td0' given", train_tsv=f"{ROW}q1\td0"),
    beir("a column too many", r"b/qrels/train\.tsv:2: .* given", train_tsv=f"{ROW}q1\t0\td0\t1\t1"),
    beir("spaces for tabs", r"b/qrels/train\.tsv:2: 'q1 d0 1' given", train_tsv=f"{ROW}q1 d0 1\n"),
    beir(
        "score is a fraction",
        r"b/qrels/train\.tsv:2: score .* given",
        train_tsv=f"{ROW}q1\td0\t0.5\n",
    ),
    beir("score is ²", r"b/qrels/train\.tsv:2: score .* given", train_tsv=f"{ROW}q1\td0\t²\n"),
    beir("score is --1", r"b/qrels/train\.tsv:2: score .* given", train_tsv=f"{ROW}q1\td0\t--1\n"),
    beir(
        "a huge score",
        r"b/qrels/train\.tsv:2: score .* given",
        train_tsv=f"{ROW}q1\td0\t{'9' * 5000}\n",
    ),
    beir(
        "a document twice",
        r"b/corpus\.jsonl:2: document id 'd0' is also at b/corpus\.jsonl:1",
        corpus_jsonl=lines(
            *({"_id": name, "text": "x"} for name in ("d0", "d0", "d1", "d2", "d3", "d4"))
        ),
    ),
    beir(
        "a query twice",
        r"b/queries\.jsonl:2: query id 'q0' is also at b/queries\.jsonl:1",
        queries_jsonl=lines({"_id": "q0", "text": "x"}, {"_id": "q0", "text": "y"}),
    ),
    *(
        beir(
            f"{column} {name!r} in {file}",
            rf"b/{'qrels/' * (column != '_id')}{file.replace('_', '.')}:2: {column} is empty",
            **{file: content},
        )
        for name in ("", "  ")
        for file, column, content in (
            ("corpus_jsonl", "_id", lines({"_id": "d0", "text": "x"}, {"_id": name, "text": "y"})),
            ("queries_jsonl", "_id", lines({"_id": "q0", "text": "x"}, {"_id": name, "text": "y"})),
            ("train_tsv", "query-id", f"{ROW}{name}\td0\t1\n"),
            ("train_tsv", "corpus-id", f"{ROW}q0\t{name}\t1\n"),
        )
    ),
    beir(
        "no _id",
        r"b/corpus\.jsonl:1: no field '_id'; found 'id, text'; add it",
        corpus_jsonl='{"id": "d", "text": "x"}',
    ),
    beir(
        "_id is a fraction",
        r"b/corpus\.jsonl:1: field '_id' is float",
        corpus_jsonl='{"_id": 1.5, "text": "x"}',
    ),
    beir(
        "_id is false",
        r"b/corpus\.jsonl:1: field '_id' is bool",
        corpus_jsonl='{"_id": false, "text": "x"}',
    ),
    beir(
        "title is a list",
        r"b/corpus\.jsonl:1: field 'title' is list",
        corpus_jsonl='{"_id": "1", "title": ["a"], "text": "x"}',
    ),
]


def papers(name: str, answer: str, *rows: Any) -> Mistake:
    return Mistake(f"papers: {name}", PAPERS, rf"p\.jsonl{answer}", {"p.jsonl": lines(*rows)})


PAPERS_TABLE = [
    papers(
        "two papers",
        r": . of 2 papers have two or more statements that no other .*",
        *[{"lemmas": ["a", "b"]}] * 2,
    ),
    papers(
        "empty lists",
        r": 0 of 9 papers have two or more statements that no other .*",
        *[{"lemmas": []}] * 9,
    ),
    papers(
        "a statement each",
        r": 0 of 9 papers have two .*none of them is in train",
        *[{"theorems": ["a"]}] * 9,
    ),
    papers(
        "the same twice", r": 0 of 9 papers have two or more .*", *[{"theorems": ["a", "a "]}] * 9
    ),
    papers(
        "one pair",
        r": 1 of 9 papers have two or more .*",
        {"lemmas": ["a", "b"]},
        *[{"theorems": ["c"]}] * 8,
    ),
    papers("no lists", r":1: no lemmas or theorems", {"title": "t"}),
    papers("a list", r":1: list given", ["a"]),
    papers("lemmas is a text", r":1: lemmas is not a list of strings", {"lemmas": "a"}),
    papers("a lemma is null", r":1: lemmas is not a list of strings", {"lemmas": [None]}),
    papers(
        "an id twice", r":2: paper 'a' is also p\.jsonl:1", *[{"arxiv_id": "a", "lemmas": []}] * 2
    ),
]
HEADER = "QuestionId,ConstructName,CorrectAnswer,QuestionText,AnswerAText,AnswerBText,AnswerCText,AnswerDText,"
HEADER += "MisconceptionAId,MisconceptionBId,MisconceptionCId,MisconceptionDId\n"
EEDI_ROW = "1,Add,A,What?,1,2,3,4,,0,1,\n"


def eedi(
    name: str, answer: str, train: str = HEADER + EEDI_ROW, mapping: str = "0,Forgets\n1,Twice\n"
) -> Mistake:
    mapping = (
        mapping if "Misconception" in mapping else "MisconceptionId,MisconceptionName\n" + mapping
    )
    return Mistake(
        f"eedi: {name}",
        EEDI,
        answer,
        {"e/train.csv": train, "e/misconception_mapping.csv": mapping},
    )


EEDIS = [
    eedi(
        "no column",
        r"e/train\.csv:1: no column QuestionId; found .*; add it",
        HEADER.replace("QuestionId", "Id") + EEDI_ROW,
    ),
    eedi(
        "a column twice",
        r"e/train\.csv:1: column QuestionText given twice",
        HEADER[:-1] + ",QuestionText\n",
    ),
    eedi("header only", r"e: there are no queries", HEADER),
    eedi("a field too few", r"e/train\.csv:2: 11 fields", HEADER + EEDI_ROW[2:]),
    eedi("a field too many", r"e/train\.csv:2: 13 fields", HEADER + "0," + EEDI_ROW),
    eedi("an open quote", r"e/train\.csv:2: .*", HEADER + EEDI_ROW.replace("What", '"What')),
    eedi("text after a quote", r"e/train\.csv:2: .*", HEADER + EEDI_ROW.replace("What", '"What"x')),
    eedi(
        "correct is E",
        r"e/train\.csv:2: CorrectAnswer is 'E'",
        HEADER + EEDI_ROW.replace(",A,", ",E,"),
    ),
    eedi(
        "unknown id",
        r"e/train\.csv:2: MisconceptionCId is '7'",
        HEADER + EEDI_ROW.replace("1,\n", "7,\n"),
    ),
    eedi(
        "no answer",
        r"e/train\.csv:2: AnswerBText is empty, but is a wrong answer",
        HEADER + EEDI_ROW.replace(",2,", ",,"),
    ),
    eedi(
        "a question twice",
        r"e/train\.csv:3: query id '1_B' is also at e/train\.csv:2",
        HEADER + EEDI_ROW * 2,
    ),
    eedi(
        "an id twice",
        r"e/misconception_mapping\.csv:3: document id '0' is also at e/misconception_mapping\.csv:2",
        mapping="0,Forgets\n0,Twice\n1,Adds\n",
    ),
    eedi(
        "no name",
        r"e/misconception_mapping\.csv:3: document '1' has no text",
        mapping="0,Forgets\n1,\n",
    ),
    eedi(
        "other columns",
        r"e/misconception_mapping\.csv:1: no column .*",
        mapping="MisconceptionId;Name\n0;a\n",
    ),
    eedi("one question", r"e/train\.csv: 2 queries in 1 groups leave none for .*"),
]


@parametrize(JSON, FLAGS, BEIRS, PAPERS_TABLE, EEDIS)
def test_a_mistake_is_answered_in_one_line(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(mistake, tmp_path, monkeypatch, capsys)
