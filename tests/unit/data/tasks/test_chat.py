"""Chats of any kind: rows, verifiers by name and from a file, and what is refused."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.data.tasks import chat, read_samples, read_task
from ratchet.data.tasks.splits import group_samples, split_groups
from ratchet.data.tasks.task import row_to_sample, sample_to_row, write_task_name
from ratchet.errors import DataError, InputError

USER, ASSISTANT = {"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}
SYSTEM = {"role": "system", "content": "Be short."}


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_become_samples(tmp_path: Path) -> None:
    talk = [
        SYSTEM,
        USER,
        ASSISTANT,
        {"role": "user", "content": "And 2 + 2?"},
        {"role": "assistant", "content": "4"},
    ]
    rows = [
        {"messages": talk},
        {"messages": [USER, ASSISTANT], "id": 7, "group": "g", "answer": {"is": 2}},
    ]
    first, second = read_samples(chat.TASK, write(tmp_path, *rows))
    assert (first.id, first.group, first.system, first.gold) == ("0", "0", "Be short.", "4")
    assert first.turns == (("1 + 1?", "2"), ("And 2 + 2?", "4"))
    assert (second.id, second.group, second.system, second.gold) == ("7", "g", "", {"is": 2})
    assert row_to_sample(sample_to_row(second)).gold == {"is": 2}


def test_an_id_or_a_group_that_is_null_is_missing(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "2 + 2?"}, ASSISTANT]
    rows = [
        {"messages": messages, "id": None, "group": None} for messages in ([USER, ASSISTANT], asked)
    ]
    samples = list(read_samples(chat.TASK, write(tmp_path, *rows)))
    assert [(sample.id, sample.group) for sample in samples] == [("0", "0"), ("1", "1")]


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        (1, "weight", 0),
        (1, "weight", 0.5),
        (1, "reasoning_content", "Let me see."),
        (1, "thinking", "Let me see."),
        (1, "tool_calls", [{"type": "function", "function": {"name": "add", "arguments": "{}"}}]),
        (1, "train", False),
        (0, "name", "Ann"),
        (0, "images", ["cat.png"]),
        (None, "tools", [{"type": "function"}]),
        (None, "system", "Be short."),
        (None, "weight", 0),
    ],
)
def test_fields_that_change_what_is_trained_on_are_refused(
    tmp_path: Path, number: int | None, field: str, value: Any
) -> None:
    messages = [dict(USER), dict(ASSISTANT)]
    row: dict[str, Any] = {"messages": messages}
    (row if number is None else messages[number])[field] = value
    place = "" if number is None else rf": messages\[{number}\]"
    with pytest.raises(
        DataError, match=rf"chats.jsonl:2{place} has '{field}': .*; expected role and content only"
    ):
        list(read_samples(chat.TASK, write(tmp_path, {"messages": [USER, ASSISTANT]}, row)))


def test_accepted_chat_fields(tmp_path: Path) -> None:
    empty = {
        "tool_calls": None,
        "name": "",
        "reasoning_content": None,
        "function_call": None,
        "refusal": None,
    }
    row = {
        "messages": [USER | empty, ASSISTANT | empty | {"weight": 1}],
        "tools": [],
        "source": "forum",
        "lang": "en",
    }
    (sample,) = read_samples(chat.TASK, write(tmp_path, row))
    assert sample.turns == (("1 + 1?", "2"),)


@pytest.mark.parametrize(
    ("messages", "answer"),
    [
        ([], "messages with the roles ''; expected the system first"),
        ([SYSTEM], "messages with the roles 'system'; expected"),
        ([USER], "messages with the roles 'user'; expected"),
        ([USER, ASSISTANT, USER], "messages with the roles 'user, assistant, user'; expected"),
        ([ASSISTANT, USER], "messages with the roles 'assistant, user'; expected"),
        ([USER, SYSTEM, ASSISTANT], "messages with the roles 'user, system, assistant'; expected"),
        ([SYSTEM, SYSTEM, USER, ASSISTANT], "messages with the roles 'system, system, "),
        ([USER, {"role": "tool", "content": "x"}], "messages with the roles 'user, tool'"),
        (
            [USER, {"role": "assistant", "content": " \n"}],
            r"messages\[1\]: content is empty; expected text",
        ),
        (
            [USER, {"role": "assistant", "content": None}],
            r"messages\[1\]: field 'content' is NoneType; expected str",
        ),
        (
            [USER, {"role": "assistant"}],
            r"messages\[1\]: no field 'content'; found 'role, content'|no field 'content'",
        ),
        ([USER, "2"], r"messages\[1\] is '2'; expected an object with role and content"),
        ("hello", r"field 'messages' is str; expected list"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(
    tmp_path: Path, messages: Any, answer: str
) -> None:
    path = write(tmp_path, {"messages": [USER, ASSISTANT]}, {"messages": messages})
    with pytest.raises(DataError, match=rf"chats.jsonl:2: {answer}"):
        list(read_samples(chat.TASK, path))


def test_rows_without_messages_and_repeated_ids_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"chats.jsonl:1: no field 'messages'; found 'prompt'; add it"
    ):
        list(read_samples(chat.TASK, write(tmp_path, {"prompt": "x"})))
    row = {"messages": [USER, ASSISTANT], "id": "a"}
    with pytest.raises(
        DataError, match=r"chats.jsonl:2: id 'a' is also at .*:1; expected unique ids"
    ):
        list(read_samples(chat.TASK, write(tmp_path, row, row)))


def test_several_answers_to_a_question_stay_together(tmp_path: Path) -> None:
    """Each is kept once, and none is trained on where another one is held out."""
    texts = [(q, a) for q in range(30) for a in ("yes", "no", "no")]
    rows = [
        {"messages": [{**USER, "content": f"{q}?"}, {**ASSISTANT, "content": a}]} for q, a in texts
    ]
    groups = group_samples(chat.TASK, read_samples(chat.TASK, write(tmp_path, *rows)))
    assert [len(group) for group in groups] == [2] * 30
    options: dict[str, Any] = {
        "test_fraction": 0.3,
        "validation_fraction": 0.3,
        "seed": 1,
        "source": tmp_path,
    }
    splits = split_groups(chat.TASK, groups, **options).groups
    asked = {
        name: {one.turns[0][0] for group in own for one in group} for name, own in splits.items()
    }
    assert sum(map(len, asked.values())) == 30
    assert len(set.union(*asked.values())) == 30


def test_questions_are_on_one_side_whatever_groups_are_given(tmp_path: Path) -> None:
    """A group of each row, and every question in two of them."""
    rows = [
        {
            "messages": [{**USER, "content": f"{n % 30}?"}, {**ASSISTANT, "content": str(n)}],
            "group": f"g{n}",
        }
        for n in range(60)
    ]
    groups = group_samples(chat.TASK, read_samples(chat.TASK, write(tmp_path, *rows)))
    options: dict[str, Any] = {
        "test_fraction": 0.1,
        "validation_fraction": 0.2,
        "seed": 1,
        "source": tmp_path,
    }
    splits = split_groups(chat.TASK, groups, **options).groups
    asked = [{one.turns[0][0] for group in own for one in group} for own in splits.values()]
    assert all(asked)
    assert sum(map(len, asked)) == len(set.union(*asked))


def test_exact_compares_the_last_answer_with_the_gold_one(tmp_path: Path) -> None:
    verify = chat.make_task("exact").verify
    for gold, answer, label in (
        ("Ja  so", "ja so\n", "correct"),
        (42, "42", "correct"),
        ("42", "43", "wrong"),
    ):
        assert verify(gold, ["other", answer])[0].label == label
    path = write(
        tmp_path, {"messages": [USER, ASSISTANT]}, {"messages": [USER, ASSISTANT], "answer": 3}
    )
    with pytest.raises(
        DataError, match=r"chats.jsonl:2: the verifier of chat returns wrong for the target '2'"
    ):
        list(read_samples(chat.make_task("exact"), path))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"'exakt' given; expected none, exact, math, or FILE:FUNCTION"
    ):
        chat.make_task("exakt")


CODE = """
import math

def verify(gold, answers):
    if answers[-1] == "boom":
        return 1 / 0
    return {"half": 0.5, "none": 0, "late": "too_late", "right": "correct"}.get(answers[-1], answers[-1] == gold)

def returns_nothing(gold, answers):
    pass
"""


def test_a_function_returns_a_bool_a_number_or_a_label(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(CODE)
    write_task_name(tmp_path, "chat", **chat.make_task("verify", mine).source)
    task = read_task(tmp_path, mine)
    found = {
        text: task.verify("2", [text])[0] for text in ("2", "3", "half", "none", "late", "right")
    }
    labels = {text: one.label for text, one in found.items()}
    assert labels == {
        "2": "correct", "3": "wrong", "half": "partial", "none": "wrong", "late": "too_late", "right": "correct"
    }  # fmt: skip
    assert [one.scores["score"] for one in found.values()] == [1.0, 0.0, 0.5, 0.0, 0.0, 1.0]
    with pytest.raises(
        DataError, match=r"/mine.py:6: ZeroDivisionError: division by zero, for the gold answer '2'"
    ):
        task.verify("2", ["boom"])


@pytest.mark.parametrize(
    ("name", "code", "answer"),
    [
        (
            "returns_nothing",
            CODE,
            r":1: TypeError: None returned, for the gold answer 'g' and the answers \['a'\]",
        ),
        (
            "missing",
            CODE,
            r":1: KeyError: 'missing'; expected one file, .* with a function missing\(gold, answers\)",
        ),
        ("verify", "def verify(:\n", ":1: SyntaxError: "),
        (
            "verify",
            "\n\nimport helpers_beside\n",
            ":3: ModuleNotFoundError: .*imports installed packages only",
        ),
        (
            "verify",
            "def verify(gold):\n    return True\n",
            r":1: TypeError: verify\(\) takes 1 positional argument",
        ),
        ("verify", "def verify(gold, answers):\n    return 2\n", ":1: TypeError: 2 returned"),
    ],
)
def test_mistakes_in_a_function_are_named_by_file_and_line(
    name: str, code: str, answer: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(DataError, match="/mine.py" + answer):
        chat.make_task(name, tmp_path / "mine.py").verify("g", ["a"])


def test_stored_samples_contain_no_code(tmp_path: Path) -> None:
    """A store, or a model from elsewhere, could have been written by anybody."""
    mine = tmp_path / "mine.py"
    mine.write_text(CODE)
    write_task_name(tmp_path, "chat", **chat.make_task("verify", mine).source)
    assert "def" not in (tmp_path / "task.json").read_text()
    with pytest.raises(
        InputError, match=r"no file was given; expected the file that prepare_tasks"
    ):
        read_task(tmp_path)
    mine.write_text(CODE + "\n# changed\n")
    with pytest.raises(InputError, match=r"prepared with verifier verify, sha256 "):
        read_task(tmp_path, mine)
    ran = tmp_path / "ran"
    forged = {"task": "chat", "verifier": "verify", "code": f"open({str(ran)!r}, 'w')"}
    (tmp_path / "task.json").write_text(json.dumps(forged))
    with pytest.raises(InputError):
        read_task(tmp_path)
    assert not ran.exists()
    write_task_name(tmp_path, "gsm8k")
    with pytest.raises(InputError, match=r"given as verifier_file, for task gsm8k; expected none"):
        read_task(tmp_path, mine)


@pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")
def test_other_versions_of_the_verifiers_libraries_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task_name(tmp_path, "chat", **chat.make_task("math").source)
    assert read_task(tmp_path).source["sympy"] == importlib.metadata.version("sympy")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0")
    with pytest.raises(InputError, match=r"math-verify 0\.0.* given; expected the same"):
        read_task(tmp_path)


def test_without_a_verifier_nothing_can_be_verified() -> None:
    with pytest.raises(
        DataError, match=r"no verifier given; expected one; set prepare_tasks\.verifier"
    ):
        chat.TASK.verify("2", ["2"])
