"""Rows as other libraries write them, converted to the fields of `pairs` or of `data.tasks.chat`.

A row is known by the names of its fields. A conversion takes the fields that it reads out of the row; others stay.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ratchet.data.formats.text_files import TEXTS
from ratchet.errors import DataError

Row = dict[str, Any]
Signature = tuple[str, tuple[str, ...], Callable[[Row], Row | list[Row]]]
"""(what a row is read as, fields by which it is known, conversion)."""


def _take_texts(row: Row) -> Row:
    query, positive, *negative = row.pop(TEXTS)
    return {"query": query, "positive": positive, "negative": negative}


def _take_set(row: Row) -> Row:
    query, *positives = row.pop("set")
    return {"query": query, "positive": positives}


def _join_title(passage: Mapping[str, Any]) -> str:
    """Return title and text as for BEIR."""
    return f"{passage.get('title') or ''}\n{passage['text']}".strip()


def _name_passages(writer: str, query: str, positive: str, *negatives: str) -> Signature:
    """Return the signature of rows with lists of passages (title and text) in fields of these names."""

    def take(row: Row) -> Row:
        wrong: list[Any] = []
        for name in negatives:
            wrong += row.pop(name, None) or ()
        return {
            "query": row.pop(query),
            "positive": [_join_title(one) for one in row.pop(positive)],
            "negative": [_join_title(one) for one in wrong],
        }

    return writer, (query, positive), take


def _take_messages(row: Row) -> Row:
    """The last message is the text, and the system message the instruction."""
    messages = row.pop("messages")
    made = {"query": messages[-1]["content"]}
    for one in messages:
        if one["role"] == "system":
            made["task"] = one["content"]
    for name in ("positive", "negative"):
        given = row.pop(f"{name}_messages", None) or ()
        made[name] = [messages[-1]["content"] for messages in given]
    return made


def _take_selected(row: Row) -> list[Row]:
    """Each passage of a query is a row with its label."""
    passages = row.pop("passages")
    rows = []
    for text, label in zip(passages["passage_text"], passages["is_selected"], strict=True):
        rows.append({"positive": text, "label": label})
    return rows


def _take_question(row: Row) -> Row:
    """The paragraph of a question without an answer is a negative."""
    made = {"query": row.pop("question"), "positive": row.pop("context")}
    answers = row.pop("answers", None)
    if isinstance(answers, dict):
        answers = answers["text"]
    if answers is not None:
        made["label"] = int(len(answers) > 0)
    if "id" in row:
        made["query_id"] = row.pop("id")
    return made


def _take_paragraphs(row: Row) -> list[Row]:
    rows = []
    for paragraph in row.pop("paragraphs"):
        for question in paragraph["qas"]:
            rows.append(_take_question(question | paragraph))
    return rows


def _take_ids(row: Row) -> list[Row]:
    corpus = row.pop("corpus")
    queries = row.pop("queries")
    rows = []
    for name, documents in row.pop("relevant_docs").items():
        texts = [corpus[document] for document in documents]
        rows.append({"query_id": name, "query": queries[name], "positive": texts})
    return rows


def _take_premise(row: Row) -> Row:
    names = {"0": "entailment", "1": "neutral", "2": "contradiction"}
    label = str(row.pop("label"))
    return {"label": names.get(label, label)}


def _take_sentence(row: Row) -> Row:
    names = {"0": "entailment", "1": "not_entailment"}
    label = str(row.pop("label"))
    return {
        "query": row.pop("question"),
        "positive": row.pop("sentence"),
        "label": names.get(label, label),
    }


def _ask(row: Row, question: Any, answer: Any) -> Row:
    """Return the chat of a row with a question and an answer, each a text or messages. Its optional fields `system` and
    `history` (pairs of question and answer) come before."""
    messages = _start(row)
    for turn in (*(row.pop("history", None) or ()), (question, answer)):
        for role, said in zip(("user", "assistant"), turn, strict=True):
            if isinstance(said, list):
                messages += said
            else:
                messages.append({"role": role, "content": said})
    return {"messages": messages}


def _start(row: Row) -> list[Row]:
    """Return the system message of a row, if it has one."""
    system = row.pop("system", None)
    if system:
        return [{"role": "system", "content": system}]
    return []


def _name_answer(question: str, answer: str, *, writer: str = "", given: str = "") -> Signature:
    """Return the signature of rows with a question and its answer in fields of these names. given: a field whose text
    follows the question."""

    def take(row: Row) -> Row:
        asked = row.pop(question)
        more = row.pop(given, None)
        if more:
            asked = f"{asked}\n\n{more}"
        return _ask(row, asked, row.pop(answer))

    return writer or f"{question} and {answer}", (question, answer), take


def _take_conversations(row: Row) -> Row:
    messages = _start(row)
    for one in row.pop("conversations"):
        role = one.get("from") or one["role"]
        content = one.get("value") or one["content"]
        messages.append({"role": SPEAKERS[role], "content": content})
    return {"messages": messages}


def _take_chosen(row: Row) -> Row:
    chosen = row.pop("chosen")
    del row["rejected"]
    if isinstance(chosen, dict):  # LLaMA-Factory
        row["conversations"] = [*row["conversations"], chosen]
        return _take_conversations(row)
    if isinstance(chosen, list) and chosen[0]["role"] != "assistant":  # the prompt is in it
        return {"messages": chosen}
    return _ask(row, row.pop("prompt"), chosen)


def _take_labelled(row: Row) -> Row | list[Row]:
    if not row.pop("label"):
        return []
    return _ask(row, row.pop("prompt"), row.pop("completion"))


SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "model"), "assistant"),
    "system": "system",
}
"""Speaker in a conversation -> role."""

RETRIEVAL: tuple[Signature, ...] = (
    ("texts without names: query, positive, negatives", (TEXTS,), _take_texts),
    ("sentence-transformers", ("set",), _take_set),
    _name_passages("DPR", "question", "positive_ctxs", "hard_negative_ctxs", "negative_ctxs"),
    _name_passages("Tevatron", "query", "positive_passages", "negative_passages"),
    ("ms-swift", ("messages", "positive_messages"), _take_messages),
    ("MS MARCO with `is_selected`", ("query", "passages"), _take_selected),
    ("SQuAD", ("paragraphs",), _take_paragraphs),
    ("SQuAD: the context of a question is its positive", ("question", "context"), _take_question),
    (
        "LlamaIndex: documents that no query names are left out",
        ("queries", "corpus", "relevant_docs"),
        _take_ids,
    ),
    (
        "NLI: entailment is positive, contradiction negative",
        ("premise", "hypothesis", "label"),
        _take_premise,
    ),
    (
        "QNLI: the label 0, entailment, is positive",
        ("question", "sentence", "label"),
        _take_sentence,
    ),
)
CHAT: tuple[Signature, ...] = (
    ("", ("messages",), lambda row: {}),
    ("messages", (TEXTS,), lambda row: {"messages": row.pop(TEXTS)}),
    (
        "preferences: `chosen` is trained on, `rejected` is not used",
        ("chosen", "rejected"),
        _take_chosen,
    ),
    _name_answer("instruction", "output", writer="Alpaca", given="input"),
    _name_answer("instruction", "response", writer="Dolly", given="context"),
    ("ShareGPT", ("conversations",), _take_conversations),
    (
        "KTO: completions with a false label are left out",
        ("prompt", "completion", "label"),
        _take_labelled,
    ),
    _name_answer("prompt", "completion"),
    _name_answer("prompt", "response"),
    _name_answer("query", "response"),
    _name_answer("question", "answer"),
    _name_answer("problem", "solution"),
    _name_answer("input", "output"),
    _name_answer("user", "assistant"),
)


def convert(where: str, value: Any, signatures: Sequence[Signature]) -> tuple[list[Row], str]:
    """Return a row as rows with our fields, and what it is read as; an empty text if it has our fields already. Raises
    DataError for a value that is no row, and for one that only seems to have a signature."""
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: {type(value).__name__} given; expected an object, or a list of texts; correct it"
        )
    for kind, fields, take in signatures:
        if value.keys() >= {*fields}:
            rest = value.copy()
            try:
                made = take(rest)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                raise DataError(
                    f"{where}: not as for {kind} ({type(error).__name__}: {error}); expected its fields; correct the"
                    " row"
                ) from None
            if isinstance(made, dict):
                made = [made]
            return [rest | row for row in made], kind
    return [value], ""
