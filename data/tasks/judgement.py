"""Judgement: a score of 1 to 5 for a query with a document, by a language model."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ratchet.data.formats.text_files import read_field, read_json_objects
from ratchet.data.tasks.query_generation import fill
from ratchet.data.tasks.task import CORRECT, Sample, Task, Verification

NAME = "judgement"
PROMPT = (
    "Rate how good the query is for the document, from 1 to 5. 5: someone could have asked it without knowing the"
    " document, and the document answers it completely. 3: the document answers a part of it. 1: the document does not"
    " answer it, or it cannot be understood without the document. Reply with the number alone.\n\n"
    "Document: {document}\n\nQuery: {query}\n\nScore:"
)
"""Template of prompts."""
SCORE = re.compile(r"[1-5]")


def make_prompt(template: str, query: str, document: str) -> str:
    return fill(template, query=query, document=document)


def read_score(answer: str) -> int:
    """Return the first digit from 1 to 5 in an answer; 0 without one."""
    found = SCORE.search(answer)
    return int(found[0]) if found else 0


def read(path: Path) -> Iterator[Sample]:
    """Yield the rows of JSON Lines with `query`, `document` and `score` as samples."""
    for number, (where, row) in enumerate(read_json_objects(path)):
        texts = [read_field(where, row, name, str) for name in ("query", "document")]
        score = read_field(where, row, "score", int)
        turn = make_prompt(PROMPT, *texts), str(score)
        yield Sample(str(number), str(number), "", (turn,), {"score": score}, where)


def verify(gold: Any, answers: Sequence[str]) -> list[Verification]:
    """Compare the score in an answer with the reference."""
    right = read_score(answers[0]) == gold["score"]
    return [Verification(CORRECT if right else "other_score")]


TASK = Task(NAME, read, verify, ("other_score",))
