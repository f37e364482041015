"""Rows as other libraries write them, converted to the fields of `pairs` or of `data.tasks.chat`.

A row is known by the names of its fields; a list of texts by its length. Fields that a signature does not name stay.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratchet.errors import DataError

Row = dict[str, Any]


def _take_texts(texts: Sequence[Any]) -> Row:
    query, positive, *negative = texts
    return {"query": query, "positive": positive, "negative": negative}


def _take_set(row: Row) -> Row:
    query, *positives = row["set"]
    return {"query": query, "positive": positives}


def _join_title(passage: Mapping[str, Any]) -> str:
    """Return title and text as for BEIR."""
    return f"{passage.get('title') or ''}\n{passage['text']}".strip()


def _take_contexts(row: Row) -> Row:
    wrong = [*row.get("hard_negative_ctxs", ()), *row.get("negative_ctxs", ())]
    return {
        "query": row["question"],
        "positive": [_join_title(one) for one in row["positive_ctxs"]],
        "negative": [_join_title(one) for one in wrong],
    }


def _take_passages(row: Row) -> Row:
    return {
        "id": str(row["query_id"]),
        "query": row["query"],
        "positive": [_join_title(one) for one in row["positive_passages"]],
        "negative": [_join_title(one) for one in row["negative_passages"]],
    }


def _take_messages(row: Row) -> Row:
    """The last message is the text, and the system message the instruction."""
    system = [one["content"] for one in row["messages"] if one["role"] == "system"]
    made = {
        "query": row["messages"][-1]["content"],
        "positive": [messages[-1]["content"] for messages in row["positive_messages"]],
        "negative": [messages[-1]["content"] for messages in row.get("negative_messages", ())],
    }
    if system:
        made["task"] = system[0]
    return made


def _ask(question: str, answer: str, system: str = "") -> Row:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    return {"messages": messages}


def _take_instruction(row: Row) -> Row:
    question = "\n\n".join(filter(None, (row["instruction"], row.get("input"))))
    return _ask(question, row["output"], row.get("system") or "")


def _take_conversations(row: Row) -> Row:
    roles = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
    roles["system"] = "system"
    messages = []
    for one in row["conversations"]:
        messages.append({"role": roles[one["from"]], "content": one["value"]})
    return {"messages": messages}


Signature = tuple[str, tuple[str, ...], tuple[str, ...], Callable[[Row], Row]]
"""(who writes it, fields by which it is known, further fields that are read, conversion)."""

RETRIEVAL: tuple[Signature, ...] = (
    ("sentence-transformers", ("set",), (), _take_set),
    ("DPR", ("question", "positive_ctxs"), ("hard_negative_ctxs", "negative_ctxs"), _take_contexts),
    (
        "Tevatron",
        ("query_id", "query", "positive_passages", "negative_passages"),
        (),
        _take_passages,
    ),
    ("ms-swift", ("messages", "positive_messages"), ("negative_messages",), _take_messages),
)
CHAT: tuple[Signature, ...] = (
    ("Alpaca", ("instruction", "output"), ("input", "system"), _take_instruction),
    ("ShareGPT", ("conversations",), (), _take_conversations),
    ("TRL", ("prompt", "completion"), (), lambda row: _ask(row["prompt"], row["completion"])),
)


def convert(where: str, value: Any, signatures: Sequence[Signature]) -> tuple[Row, str]:
    """Return a row with our fields, and who writes such rows; an empty text if it has our fields already. Raises
    DataError for a value that is no row, and for one that only seems to have a signature."""
    try:
        if isinstance(value, list) and signatures is RETRIEVAL and 2 <= len(value) <= 3:
            return _take_texts(value), "sentence-transformers"
        if not isinstance(value, dict):
            raise DataError(
                f"{where}: {type(value).__name__} given; expected an object, or two or three texts; correct it"
            )
        for writer, fields, further, change in signatures:
            if value.keys() >= {*fields}:
                rest = {name: value[name] for name in value.keys() - {*fields, *further}}
                return {**rest, **change(value)}, writer
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(
            f"{where}: not as {writer} writes it ({type(error).__name__}: {error}); expected its fields; correct"
            " the row"
        ) from None
    return value, ""
