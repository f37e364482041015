"""Files as users of other libraries have them are read by their content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.data.formats.detection import load_queries, load_retrieval
from ratchet.data.tasks import chat
from ratchet.errors import DataError

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
OTHER = {"query": "who", "positive": "she"}


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize("name", ROWS)
def test_rows_are_pairs(name: str, suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"train{suffix}"
    rows = [ROWS[name], OTHER]
    file.write_text(
        json.dumps(rows) if suffix == ".json" else "".join(f"{json.dumps(r)}\n" for r in rows)
    )
    data = load_retrieval(file)
    texts = {document.id: document.text for document in data.corpus}
    query = next(one for one in data.queries if one.text == "how far")
    (positive,) = query.positives
    negatives = [texts[one] for one in query.negatives]
    expected = [] if name in ("list of two", "set") else PAIR[2]
    assert (query.text, texts[positive], negatives) == (PAIR[0], PAIR[1], expected)
    assert query.task == ("Find it." if name == "ms-swift" else "")
    assert query.id == ("7" if name == "Tevatron" else query.id)
    assert [count for note, count in data.notes.items() if note.startswith("rows as ")] == [1]
    assert list(data.unread) == (["answers"] if name == "DPR" else [])
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
        ({"set": []}, r":2: not as sentence-transformers writes it \(ValueError"),
        ({"question": "q", "positive_ctxs": [{"title": "T"}]}, r":2: not as DPR .*'text'"),
        ({"messages": [], "positive_messages": []}, r":2: not as ms-swift .*IndexError"),
        (["a"], r":2: list given; expected an object, or two or three texts"),
        (["a", "b", "c", "d"], ":2: list given"),
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
}


@pytest.mark.parametrize("name", CHATS)
def test_rows_are_chats(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps(CHATS[name]))
    (sample,) = chat.read(file)
    assert sample.turns == (("Add\n\n1 and 2", "3"),)
    assert sample.system == ("" if name == "TRL" else "Be short.")


def test_a_role_that_nobody_has_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(json.dumps({"conversations": [{"from": "tool", "value": "x"}]}))
    with pytest.raises(DataError, match=r":1: not as ShareGPT writes it \(KeyError: 'tool'\)"):
        list(chat.read(file))
