"""Files as users of other libraries have them are read by their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.data.formats.detection import load_queries, load_retrieval
from ratchet.data.tasks import chat
from ratchet.errors import DataError
from ratchet.jobs.answers.prepare_tasks import Config, Inputs, check

PAIR = ("how far", "T\nten miles", ["two days"])
"""(query, positive, negatives) of the first row."""


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


ROWS: dict[str, Any] = {
    "list of two": ["how far", "T\nten miles"],
    "list of three": ["how far", "T\nten miles", "two days"],
    "set": {"set": ["how far", "T\nten miles"]},
    "DPR": {
        "question": "how far",
        "answers": ["ten"],
        "positive_ctxs": [{"title": "T", "text": "ten miles"}],
        "negative_ctxs": [],
        "hard_negative_ctxs": [{"title": "", "text": "two days"}],
    },
    "texts": {"texts": ["how far", "T\nten miles"], "label": 1},
    "MS MARCO": {
        "query_id": 7,
        "query": "how far",
        "passages": {"is_selected": [0, 1], "passage_text": ["two days", "T\nten miles"]},
        "answers": ["ten"],
    },
    "SQuAD": {
        "id": "7",
        "question": "how far",
        "context": "T\nten miles",
        "answers": {"text": ["ten"], "answer_start": [2]},
    },
    "LlamaIndex": {
        "queries": {"7": "how far"},
        "corpus": {"a": "T\nten miles", "b": "no query names it"},
        "relevant_docs": {"7": ["a"]},
        "mode": "text",
    },
    "NLI": {"premise": "how far", "hypothesis": "T\nten miles", "label": 0},
    "Tevatron": {
        "query_id": 7,
        "query": "how far",
        "positive_passages": [{"docid": "1", "title": "T", "text": "ten miles"}],
        "negative_passages": [{"docid": "2", "text": "two days"}],
    },
    "ms-swift": {
        "messages": [{"role": "system", "content": "Find it."}, *user("how far")],
        "positive_messages": [user("T\nten miles")],
        "negative_messages": [user("two days")],
    },
}
TEXTS = "texts without names"
KINDS = {
    "list of two": TEXTS,
    "list of three": TEXTS,
    "texts": TEXTS,
    "set": "sentence-transformers",
}
OTHER = {"query": "who", "positive": "she"}


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_pairs(name: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"train{suffix}"
    rows = [ROWS[name], *[OTHER] * (name != "NLI")]
    if name == "NLI":
        rows += [
            {**rows[0], "hypothesis": text, "label": n} for n, text in ((1, "x"), (2, "two days"))
        ]
    file.write_text(
        json.dumps(rows) if suffix == ".json" else "".join(f"{json.dumps(r)}\n" for r in rows)
    )
    data = load_retrieval(file)
    texts = {document.id: document.text for document in data.corpus}
    query = next(one for one in data.queries if one.text == "how far")
    (positive,) = query.positives
    negatives = [texts[one] for one in query.negatives]
    alone = ("list of two", "set", "texts", "SQuAD", "LlamaIndex")
    expected = [] if name in alone else PAIR[2]
    assert (query.text, texts[positive], negatives) == (PAIR[0], PAIR[1], expected)
    assert query.task == ("Find it." if name == "ms-swift" else "")
    named = ("Tevatron", "MS MARCO", "SQuAD", "LlamaIndex")
    assert query.id == ("7" if name in named else query.id)
    read = [note for note in data.notes if note.startswith("rows read as ")]
    assert f"rows read as {KINDS.get(name, name)}" in "; ".join(read)
    unread = {"DPR": ["answers"], "MS MARCO": ["answers"], "LlamaIndex": ["mode"]}
    assert list(data.unread) == unread.get(name, [])
    assert "how far" in {one.text for one in load_queries(file)}


def test_options_name_the_columns_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    rows = [{"set": ["a", "b"], "q": f"q{i}", "d": f"d{i}"} for i in range(2)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = load_retrieval(file, "query=q&positive=d")
    assert [one.text for one in data.queries] == ["q0", "q1"]
    assert list(data.unread) == ["set"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"set": []}, r":2: not as for sentence-transformers \(ValueError"),
        ({"question": "q", "context": "c", "answers": 3}, r":2: not as for SQuAD.*TypeError"),
        ({"question": "q", "positive_ctxs": [{"title": "T"}]}, r":2: not as for DPR .*'text'"),
        ({"messages": [], "positive_messages": []}, r":2: not as for ms-swift .*IndexError"),
        (["a"], r":2: not as for texts without names: query, positive, negatives \(ValueError"),
        (["a", 3], ":2: positive 3 given; expected a text"),
        (3, ":2: int given"),
    ],
)
def test_what_only_seems_so_is_an_error_with_its_line(
    row: Any, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(f"{json.dumps(OTHER)}\n{json.dumps(row)}\n")
    with pytest.raises(DataError, match=message):
        load_retrieval(file)


ANSWER = {"role": "assistant", "content": "3"}
CHATS: dict[str, Any] = {
    "Alpaca": {"instruction": "Add", "input": "1 and 2", "output": "3", "system": "Be short."},
    "ShareGPT": {
        "conversations": [
            {"from": "system", "value": "Be short."},
            {"from": "human", "value": "Add\n\n1 and 2"},
            {"from": "gpt", "value": "3"},
        ]
    },
    "TRL": {"prompt": "Add\n\n1 and 2", "completion": "3"},
    "TRL's messages": {"prompt": user("Add\n\n1 and 2"), "completion": [ANSWER]},
    "preferences": {"prompt": "Add\n\n1 and 2", "chosen": "3", "rejected": "4"},
    "preferences' messages": {
        "chosen": [*user("Add\n\n1 and 2"), ANSWER],
        "rejected": [*user("Add\n\n1 and 2"), {**ANSWER, "content": "4"}],
    },
    "preferences' answers": {"prompt": "Add\n\n1 and 2", "chosen": [ANSWER], "rejected": []},
    "LLaMA-Factory": {
        "conversations": [{"from": "human", "value": "Add\n\n1 and 2"}],
        "chosen": {"from": "gpt", "value": "3"},
        "rejected": {"from": "gpt", "value": "4"},
    },
    "KTO": {"prompt": "Add\n\n1 and 2", "completion": "3", "label": True},
    "Dolly": {"instruction": "Add", "context": "1 and 2", "response": "3", "system": "Be short."},
    "roles": {"conversations": [*user("Add\n\n1 and 2"), ANSWER], "system": "Be short."},
    "ms-swift": {"query": "Add\n\n1 and 2", "response": "3", "history": []},
    "question and answer": {"question": "Add\n\n1 and 2", "answer": "3"},
    "a list": [*user("Add\n\n1 and 2"), ANSWER],
}


@pytest.mark.parametrize("name", CHATS)
def test_rows_are_chats(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps(CHATS[name]))
    (sample,) = chat.read(file)
    assert sample.turns == (("Add\n\n1 and 2", "3"),)
    has_system = name in ("Alpaca", "ShareGPT", "Dolly", "roles")
    assert sample.system == ("Be short." if has_system else "")


def test_turns_before_the_question_are_trained_on_too(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"query": "and 2?", "response": "3", "history": [["Add 1", "to what?"]]}')
    (sample,) = chat.read(file)
    assert sample.turns == (("Add 1", "to what?"), ("and 2?", "3"))


def test_completions_with_a_false_label_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    rows = [{"prompt": f"{n}", "completion": f"is {n}", "label": n % 2 == 0} for n in range(4)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert [sample.turns[0][1] for sample in chat.read(file)] == ["is 0", "is 2"]


def test_the_plan_says_that_rejected_answers_are_not_used(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    rows = [{"prompt": f"{n}?", "chosen": f"is {n}", "rejected": "no"} for n in range(40)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    said = check(Config(task="chat"), Inputs(data=file), {})
    assert said.note == ("rows read as preferences: `chosen` is trained on, `rejected` is not used")


def test_a_role_that_nobody_has_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps({"conversations": [{"from": "tool", "value": "x"}]}))
    with pytest.raises(DataError, match=r":1: not as for ShareGPT \(KeyError: 'tool'\)"):
        list(chat.read(file))
