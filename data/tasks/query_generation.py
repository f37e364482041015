"""Query generation: a search query that a document answers, for documents without training queries.

A prompt may begin with pairs of a document and a real query, as in InPars (Bonifacio et al. 2022) and Promptagator (Dai
et al. 2023). To train a generator, the task reads JSON Lines with `document` and `query`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ratchet.data.formats.text_files import read_field, read_json_objects
from ratchet.data.tasks.task import CORRECT, Sample, Task, Verification

NAME = "query-generation"
PROMPT = (
    "Write a search query that the last document answers. Reply with the query alone, on one line.\n\n"
    "{examples}Document: {document}\nQuery:"
)
"""Template of prompts."""
PROMPT_OF_TWO = (
    "Write a search question that needs both documents for its answer. Reply with the question alone, on one line.\n\n"
    "{examples}Document: {document}\nQuestion:"
)
"""Template of prompts with two documents."""
SEPARATOR = "\n\nDocument: "
"""Between two documents."""
EXAMPLE = "Document: {document}\nQuery: {query}\n\n"
FAILURES = ("empty", "copy")
QUOTES = "\"'`“”„«»*"


def make_prompt(template: str, document: str, examples: Sequence[tuple[str, str]] = ()) -> str:
    """Return the prompt for the query of a document. examples: pairs (document, query); each query is put on one line,
    since an answer is read up to the end of its line."""
    shown = ""
    for other, query in examples:
        shown += fill(EXAMPLE, document=other, query=" ".join(query.split()))
    return fill(template, document=document, examples=shown)


def fill(template: str, **texts: str) -> str:
    """Replace the placeholders in one pass, so that braces in a text are left alone."""
    return re.sub(r"{(\w+)}", lambda found: texts.get(found[1], found[0]), template)


def clean_query(answer: str) -> str:
    """Return the first line of an answer without `Query:` and quotation marks; empty if it has no letter or digit."""
    line = answer.strip().partition("\n")[0]
    line = line.strip(f"{QUOTES} ").removeprefix("Query:").removeprefix("Question:")
    query = " ".join(line.strip(f"{QUOTES} ").split())
    if any(letter.isalnum() for letter in query):
        return query
    return ""


def read(path: Path) -> Iterator[Sample]:
    """Yield the rows of a file as samples. Samples of one document are a group."""
    for number, (where, row) in enumerate(read_json_objects(path)):
        document = read_field(where, row, "document", str)
        query = read_field(where, row, "query", str)
        turn = make_prompt(PROMPT, document), " ".join(query.split())
        yield Sample(str(number), document, "", (turn,), {"document": document}, where)


def verify(gold: Any, answers: Sequence[str]) -> list[Verification]:
    """Tell whether an answer has a query (`empty`) that is not the document itself (`copy`)."""
    query = clean_query(answers[0])
    document = " ".join(gold["document"].split())
    copied = query.casefold() == document.casefold()
    if not query:
        return [Verification("empty")]
    if copied:
        return [Verification("copy")]
    return [Verification(CORRECT)]


TASK = Task(NAME, read, verify, FAILURES, has_repeats=True)
