"""Mistakes in the files of tasks (GSM8K, SQuAD, Countdown), in settings files, and in the value of `data`."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import read_data
from mistakes import Mistake, check, parametrize

PROBLEMS = [{"question": f"What is {i} + 1?", "answer": f"So.\n#### {i + 1}"} for i in range(9)]
TASKS = [{"nums": [1, 2, i], "target": i + 3, "solution": f"1 + 2 + {i}"} for i in range(3, 12)]


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def gsm8k(name: str, answer: str, row: Any) -> Mistake:
    files = {"g.jsonl": lines([PROBLEMS[0], row, *PROBLEMS[2:]])}
    return Mistake(
        f"gsm8k: {name}",
        f"{read_data.COMMAND}gsm8k --set data=g.jsonl",
        rf"g\.jsonl:2: {answer}",
        files,
    )


GSM8K = [
    gsm8k("no question", r"no field 'question'; found 'answer'; add it", {"answer": "#### 7"}),
    gsm8k("no answer", r"no field 'answer'; found 'question'; add it", {"question": "What?"}),
    gsm8k("question is a list", r"field 'question' is list", {"question": [], "answer": "#### 7"}),
    gsm8k("answer is a number", r"field 'answer' is int", {"question": "What?", "answer": 7}),
    gsm8k("no sign", r"answer '7'", {"question": "What?", "answer": "7"}),
    gsm8k("no number", r"answer '#### x'", {"question": "What?", "answer": "#### x"}),
    gsm8k("a blank question", r"answer '#### 7'", {"question": " ", "answer": "#### 7"}),
    gsm8k("a list", r"list given", ["What?", "#### 7"]),
]


def with_test(name: str, answer: str, data: list[Any], test: list[Any]) -> Mistake:
    files = {"g.jsonl": lines(data), "t.jsonl": lines(test)}
    return Mistake(
        f"test: {name}",
        f"{read_data.COMMAND}gsm8k --set data=g.jsonl --set test=t.jsonl",
        answer,
        files,
    )


SAME = r"g\.jsonl: given as data and as test"
SPLITS = [
    Mistake(
        "test: the same file",
        f"{read_data.COMMAND}gsm8k --set data=g.jsonl --set test=g.jsonl",
        SAME,
        {"g.jsonl": lines(PROBLEMS)},
    ),
    Mistake(
        "test: the same file in other words",
        f"{read_data.COMMAND}gsm8k --set data=g.jsonl --set test=./a/../g.jsonl",
        SAME,
        {"g.jsonl": lines(PROBLEMS), "a/": ""},
    ),
    Mistake(
        "test: a link to the same file",
        f"{read_data.COMMAND}gsm8k --set data=g.jsonl --set test=t.jsonl",
        SAME,
        {"g.jsonl": lines(PROBLEMS)},
        lambda folder: (folder / "t.jsonl").symlink_to("g.jsonl"),
    ),
    with_test(
        "all training rows are test rows",
        r"g\.jsonl: 9 groups in 9 documents, 9 of them with a question of the test split",
        PROBLEMS,
        PROBLEMS,
    ),
    with_test(
        "all but one training row are test rows",
        r"g\.jsonl: 9 groups in 9 documents, 8 of them with .*",
        PROBLEMS,
        PROBLEMS[1:],
    ),
    with_test(
        "one training row", r"g\.jsonl: 1 groups in 1 documents, .*", PROBLEMS[:1], PROBLEMS[1:]
    ),
    with_test("an empty test file", r"t\.jsonl: the file is empty", PROBLEMS, []),
    with_test(
        "a bad row of the test file", r"t\.jsonl:1: no field 'question'", PROBLEMS, [{"a": 1}]
    ),
    *(
        Mistake(
            f"gsm8k: {count} problems",
            f"{read_data.COMMAND}gsm8k --set data=g.jsonl",
            rf"g\.jsonl: {count} groups in {count} documents, .*",
            {"g.jsonl": lines(PROBLEMS[:count])},
        )
        for count in (1, 2)
    ),
]


def squad(name: str, answer: str, content: Any) -> Mistake:
    files = {"s.json": content if isinstance(content, str) else json.dumps(content)}
    return Mistake(
        f"squad: {name}",
        f"{read_data.COMMAND}squad-batch --set data=s.json",
        rf"s\.json: {answer}",
        files,
    )


def asked(**changed: Any) -> dict[str, Any]:
    """One question on one passage. A change to ... leaves the field out."""
    question = {"id": "1", "question": "Where?", "answers": [{"text": "Rome"}]} | changed
    paragraph = {
        "context": "Rome is old.",
        "qas": [{key: one for key, one in question.items() if one is not ...}],
    }
    return {"data": [{"title": "t", "paragraphs": [paragraph]}]}


OFFICIAL = r"other values given than objects"
WHERE = r"data\[0\]\.paragraphs\[0\]"
SQUAD = [
    squad("a flat list", OFFICIAL, [{"question": "Where?", "context": "Rome"}]),
    squad("a text", OFFICIAL, '"data"'),
    squad("no data", r"no field 'data'; found 'version'; add it", {"version": "1.1"}),
    squad("data is an object", r"field 'data' is dict", {"data": {}}),
    squad(
        "a flat list in data",
        r"data\[0\]: no field 'paragraphs'; found 'question'; add it",
        {"data": [{"question": "Where?"}]},
    ),
    squad("an article is a text", rf"data\[0\]: {OFFICIAL}", {"data": ["Rome"]}),
    squad("a paragraph is a text", rf"{WHERE}: {OFFICIAL}", {"data": [{"paragraphs": ["Rome"]}]}),
    squad("no context", rf"{WHERE}: no field 'context'", {"data": [{"paragraphs": [{"qas": []}]}]}),
    squad("no qas", rf"{WHERE}: no field 'qas'", {"data": [{"paragraphs": [{"context": "Rome"}]}]}),
    squad("no passages", r"no samples", {"data": []}),
    squad(
        "no questions", r"no samples", {"data": [{"paragraphs": [{"context": "Rome", "qas": []}]}]}
    ),
    squad("no question", rf"{WHERE}\.qas\[0\]: no field 'question'", asked(question=...)),
    squad(
        "question is a list",
        rf"{WHERE}\.qas\[0\]: field 'question' is list",
        asked(question=["Where?"]),
    ),
    squad("a blank question", rf"{WHERE}\.qas\[0\]: question '' with .*", asked(question=" ")),
    squad("no id", rf"{WHERE}\.qas\[0\]: no field 'id'", asked(id=...)),
    squad("id is a number", rf"{WHERE}\.qas\[0\]: field 'id' is int", asked(id=1)),
    squad("no answers", rf"{WHERE}\.qas\[0\]: no field 'answers'", asked(answers=...)),
    squad(
        "v2.0: no answer", rf"{WHERE}\.qas\[0\]: question .* with answers \[\]", asked(answers=[])
    ),
    squad(
        "answers is a text", rf"{WHERE}\.qas\[0\]: field 'answers' is str", asked(answers="Rome")
    ),
    squad("an answer is a text", rf"{WHERE}: {OFFICIAL}", asked(answers=["Rome"])),
    squad(
        "the hub's answers",
        rf"{WHERE}\.qas\[0\]: field 'answers' is dict",
        asked(answers={"text": ["Rome"]}),
    ),
    squad(
        "text is a list",
        rf"{WHERE}\.qas\[0\]: field 'text' is list",
        asked(answers=[{"text": ["Rome"]}]),
    ),
    squad(
        "a blank answer",
        rf"{WHERE}\.qas\[0\]: question .* with answers \[' '\]",
        asked(answers=[{"text": " "}]),
    ),
    squad(
        "an answer that is not in the context",
        rf"{WHERE}\.qas\[0\]: question .* with answers \['Rome', 'Paris'\]",
        asked(answers=[{"text": "Rome"}, {"text": "Paris"}]),
    ),
    squad(
        "an id twice",
        rf"data\[1\]\.paragraphs\[0\]\.qas\[0\]: question id '1' is also at s\.json: {WHERE}\.qas\[0\]",
        {"data": asked()["data"] * 2},
    ),
    squad("truncated", r"not JSON \(.*\)", json.dumps(asked())[:-9]),
    squad("JSON lines", r"not JSON \(Extra data.*\)", '{"a": 1}\n{"a": 2}\n'),
    squad("100,000 brackets", r"not JSON \(maximum recursion depth .*\)", "[" * 100_000),
    squad("NaN", r"not JSON \(NaN is no finite number\)", '{"data": NaN}'),
    squad("half a surrogate", r"not JSON \(.*surrogates not allowed\)", '{"data": ["\\ud800"]}'),
]


def countdown(name: str, answer: str, **row: Any) -> Mistake:
    files = {"c.jsonl": lines([TASKS[0], row, *TASKS[2:]])}
    return Mistake(
        f"countdown: {name}",
        f"{read_data.COMMAND}countdown --set data=c.jsonl",
        rf"c\.jsonl:2: {answer}",
        files,
    )


def parquet(name: str, answer: str, content: bytes) -> Mistake:
    command = f"{read_data.COMMAND}countdown --set data=c.parquet"
    return Mistake(f"parquet: {name}", command, rf"c\.parquet: {answer}", {"c.parquet": content})


def make_parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


GOOD = make_parquet(nums=[[1, 2]] * 9, target=[3] * 9)
UNREADABLE = r"cannot be read \(.*\)"
COUNTDOWN = [
    countdown("no nums", r"no field 'nums'; found 'target'; add it", target=3),
    countdown("no target", r"no field 'target'; found 'nums'; add it", nums=[1, 2]),
    countdown("nums is a text", r"field 'nums' is str", nums="1, 2", target=3),
    countdown("empty nums", r"nums is \[\]", nums=[], target=3),
    countdown("a negative number", r"nums is \[-1, 2\]", nums=[-1, 2], target=3),
    countdown("a fraction", r"nums is \[1\.5, 2\]", nums=[1.5, 2], target=3),
    countdown("a number is true", r"nums is \[True, 2\]", nums=[True, 2], target=3),
    countdown("target is true", r"field 'target' is bool", nums=[1, 2], target=True),
    countdown("target is a fraction", r"field 'target' is float", nums=[1, 2], target=3.0),
    countdown(
        "no way to the target", r"99 cannot be reached from \[1, 2\]", nums=[1, 2], target=99
    ),
    countdown("20 numbers to solve", r"3 cannot be reached from .*", nums=[1] * 20, target=3),
    countdown(
        "solution is a list", r"field 'solution' is list", nums=[1], target=1, solution=["1"]
    ),
    countdown(
        "a solution that calls", r"the solution '.*': .*", nums=[1], target=1, solution="exit()"
    ),
    countdown(
        "a wrong solution",
        r"the verifier of countdown returns .*; correct .*",
        nums=[1, 2],
        target=5,
        solution="1 + 2",
    ),
    countdown(
        "300 brackets", r"the solution '\(.*': .*", nums=[1], target=1, solution="(" * 300 + "1"
    ),
    parquet("empty", UNREADABLE, b""),
    parquet("text", UNREADABLE, b"nums,target\n"),
    parquet("truncated", UNREADABLE, GOOD[:-20]),
    parquet("its first half", UNREADABLE, GOOD[: len(GOOD) // 2]),
    parquet("no rows", r"no samples", make_parquet(nums=[], target=[])),
    parquet("no nums", r"row 1: no field 'nums'; found 'target'; add it", make_parquet(target=[3])),
    parquet("nums are texts", r"row 1: nums is \['1'\]", make_parquet(nums=[["1"]], target=[3])),
    parquet(
        "target is null",
        r"row 2: field 'target' is NoneType",
        make_parquet(nums=[[3], [3]], target=[3, None]),
    ),
]


def settings(name: str, answer: str, content: str | bytes) -> Mistake:
    return Mistake(
        f"settings: {name}",
        "plan quickstart --settings s.yaml",
        rf"s\.yaml{answer}",
        {"s.yaml": content},
    )


def space(name: str, answer: str, content: str | bytes) -> Mistake:
    command = "sweep quickstart --space s.yaml --metric map@25"
    return Mistake(f"space: {name}", command, rf"s\.yaml{answer}", {"s.yaml": content})


FILES_OF_SETTINGS = [
    mistake
    for make in (settings, space)
    for mistake in (
        make("empty", r": the file is empty", ""),
        make("UTF-16", r": UTF-16 given", "iterations: 1\n".encode("utf-16")),
        make("UTF-32", r": UTF-32 given", "iterations: 1\n".encode("utf-32")),
        make("latin-1", r":2: byte 0xe9 is not UTF-8", b"iterations: 1\ndata: caf\xe9\n"),
        make("NUL", r":1: a NUL byte given", b"iterations: \0\n"),
        make("half a surrogate", r":1: .* given", 'data: "\\ud800"\n'),
        make("two lines in a value", r":1: .* given", 'data: "a\\nb"\n'),
        make("more than 1 MB", r": more than 1 MB", "#" * 2**21),
        make("a list", r": no mapping given", "- iterations\n"),
        make("a nested block", r":1: a list or a nested block given", "a:\n  - b\n"),
        make(
            "a name twice",
            r":2: iterations is also given at s\.yaml:1",
            "iterations: 1\niterations: 2\n",
        ),
        make("an open bracket", r":2: .*", "a: [\n"),
        make("a tab", r":2: found character '\\t' .*", "a: 1\n\tb: 2\n"),
        make("1,000 brackets", r": hundreds of nested lists given", "a: " + "[" * 1000),
    )
]
FILES_OF_SETTINGS += [
    Mistake(
        "settings: a named pipe",
        "plan quickstart --settings s",
        r"s: a named pipe given",
        {},
        lambda f: os.mkfifo(f / "s"),
    ),
    Mistake("settings: a folder", "plan quickstart --settings s", r"s: a folder given", {"s/": ""}),
    Mistake("settings: missing", "plan quickstart --settings s", r"s: no such file"),
]

HUB = r"BeIR/scifact: not found"
WORDS = [
    Mistake(f"{kind}: data={name}", f"{read_data.COMMAND}{kind} --set 'data={given}'", answer)
    for kind in ("retrieval", "papers", "gsm8k")
    for name, given, answer in (
        ("nothing", "", r"data: nothing given"),
        ("blank", "  ", r"data: nothing given"),
        ("a URL", "https://example.org/a.jsonl", r"data: the URL https://.* given"),
        ("a bucket", "s3://bucket/a.jsonl", r"data: the URL s3://.* given"),
        ("a hub id", "BeIR/scifact", HUB),
        ("home", "~/no-such-data", r"~/no-such-data: not found"),
        ("too long", "x" * 5000, r"x+: not found"),
        ("a device", "/dev/null", r"/dev/null: a device given"),
    )
]


@parametrize(GSM8K, SPLITS, SQUAD, COUNTDOWN, FILES_OF_SETTINGS, WORDS)
def test_a_mistake_is_answered_in_one_line(
    mistake: Mistake,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(mistake, tmp_path, monkeypatch, capsys)
