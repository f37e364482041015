"""Rows as other libraries write them, converted to the fields of `pairs` or of `data.tasks.chat`.

A row is known by the names of its fields. Fields that a signature does not name stay.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratchet.data.formats.text_files import TEXTS
from ratchet.errors import DataError

Row = dict[str, Any]


def _take_texts(row: Row) -> Row:
    query, positive, *negative = row[TEXTS]
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
        "query": row["query"],
        "positive": [_join_title(one) for one in row["positive_passages"]],
        "negative": [_join_title(one) for one in row.get("negative_passages") or ()],
    }


def _take_messages(row: Row) -> Row:
    """The last message is the text, and the system message the instruction."""
    system = [one["content"] for one in row["messages"] if one["role"] == "system"]
    made = {
        "query": row["messages"][-1]["content"],
        "positive": [messages[-1]["content"] for messages in row["positive_messages"]],
        "negative": [messages[-1]["content"] for messages in row.get("negative_messages") or ()],
    }
    if system:
        made["task"] = system[0]
    return made


def _take_selected(row: Row) -> list[Row]:
    """Each passage of a query is a row with its label."""
    passages = row["passages"]
    rows = []
    for text, label in zip(passages["passage_text"], passages["is_selected"], strict=True):
        rows.append({"query": row["query"], "positive": text, "label": label})
    return rows


def _take_question(row: Row) -> Row:
    """The paragraph of a question without an answer is a negative."""
    made = {"query": row["question"], "positive": row["context"]}
    answers = row.get("answers")
    if isinstance(answers, dict):
        answers = answers["text"]
    if answers is not None:
        made["label"] = int(len(answers) > 0)
    if "id" in row:
        made["query_id"] = row["id"]
    return made


def _take_paragraphs(row: Row) -> list[Row]:
    rows = []
    for paragraph in row["paragraphs"]:
        for question in paragraph["qas"]:
            rows.append(_take_question(question | paragraph))
    return rows


NLI = {"0": "entailment", "1": "neutral", "2": "contradiction", "-1": "neutral"}


def _take_premise(row: Row) -> Row:
    label = str(row["label"])
    return {"query": row["premise"], "positive": row["hypothesis"], "label": NLI.get(label, label)}


def _ask(row: Row, question: Any, answer: Any) -> Row:
    """Return the chat of a row with a question and an answer, each a text or messages. Its optional fields `system` and
    `history` (pairs of question and answer) come before."""
    messages = []
    if row.get("system"):
        messages.append({"role": "system", "content": row["system"]})
    for turn in (*(row.get("history") or ()), (question, answer)):
        for role, said in zip(("user", "assistant"), turn, strict=True):
            if isinstance(said, list):
                messages += said
            else:
                messages.append({"role": role, "content": said})
    return {"messages": messages}


def _take_instruction(row: Row) -> Row:
    given = row.get("input") or row.get("context")
    question = "\n\n".join(filter(None, (row["instruction"], given)))
    return _ask(row, question, row.get("output") or row["response"])


def _take_conversations(row: Row) -> Row:
    messages = []
    if row.get("system"):
        messages.append({"role": "system", "content": row["system"]})
    for one in row["conversations"]:
        role = one.get("from") or one["role"]
        content = one.get("value") or one["content"]
        messages.append({"role": SPEAKERS[role], "content": content})
    return {"messages": messages}


def _take_chosen(row: Row) -> Row:
    chosen = row["chosen"]
    if isinstance(chosen, list) and chosen[0]["role"] != "assistant":  # the prompt is in it
        return {"messages": chosen}
    return _ask(row, row["prompt"], chosen)


def _take_labelled(row: Row) -> Row | list[Row]:
    if not row["label"]:
        return []
    return _ask(row, row["prompt"], row["completion"])


SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model"), "assistant"),
    "system": "system",
}
"""Speaker in a conversation -> role."""

Signature = tuple[str, tuple[str, ...], tuple[str, ...], Callable[[Row], Row | list[Row]]]
"""(what a row is read as, fields by which it is known, further fields that are read, conversion)."""


def _name_pair(question: str, answer: str) -> Signature:
    """Return the signature of rows with a question and its answer in fields of these names."""
    return (
        f"{question} and {answer}",
        (question, answer),
        ("system", "history"),
        lambda row: _ask(row, row[question], row[answer]),
    )


RETRIEVAL: tuple[Signature, ...] = (
    ("texts without names: query, positive, negatives", (TEXTS,), (), _take_texts),
    ("sentence-transformers", ("set",), (), _take_set),
    ("DPR", ("question", "positive_ctxs"), ("hard_negative_ctxs", "negative_ctxs"), _take_contexts),
    ("Tevatron", ("query", "positive_passages"), ("negative_passages",), _take_passages),
    ("ms-swift", ("messages", "positive_messages"), ("negative_messages",), _take_messages),
    ("MS MARCO with `is_selected`", ("query", "passages"), (), _take_selected),
    ("SQuAD", ("paragraphs",), (), _take_paragraphs),
    (
        "SQuAD: the context of a question is its positive",
        ("question", "context"),
        ("answers", "id"),
        _take_question,
    ),
    (
        "NLI: entailment is positive, contradiction negative",
        ("premise", "hypothesis", "label"),
        (),
        _take_premise,
    ),
)
CHAT: tuple[Signature, ...] = (
    ("", ("messages",), (), lambda row: {"messages": row["messages"]}),
    ("messages", (TEXTS,), (), lambda row: {"messages": row[TEXTS]}),
    (
        "preferences: `chosen` is trained on, `rejected` is not used",
        ("chosen", "rejected"),
        ("prompt", "system"),
        _take_chosen,
    ),
    ("Alpaca", ("instruction", "output"), ("input", "system", "history"), _take_instruction),
    ("Dolly", ("instruction", "response"), ("context", "system"), _take_instruction),
    ("ShareGPT", ("conversations",), ("system",), _take_conversations),
    (
        "KTO: completions with a false label are left out",
        ("prompt", "completion", "label"),
        (),
        _take_labelled,
    ),
    _name_pair("prompt", "completion"),
    _name_pair("prompt", "response"),
    _name_pair("query", "response"),
    _name_pair("question", "answer"),
    _name_pair("problem", "solution"),
    _name_pair("input", "output"),
)


def convert(where: str, value: Any, signatures: Sequence[Signature]) -> tuple[list[Row], str]:
    """Return a row as rows with our fields, and what it is read as; an empty text if it has our fields already. Raises
    DataError for a value that is no row, and for one that only seems to have a signature."""
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: {type(value).__name__} given; expected an object, or a list of texts; correct it"
        )
    signature = next((one for one in signatures if value.keys() >= {*one[1]}), None)
    if signature is None:
        return [value], ""
    kind, fields, further, change = signature
    try:
        made = change(value)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DataError(
            f"{where}: not as for {kind} ({type(error).__name__}: {error}); expected its fields; correct the row"
        ) from None
    if isinstance(made, dict):
        made = [made]
    rest = {name: value[name] for name in value.keys() - {*fields, *further}}
    return [rest | row for row in made], kind
