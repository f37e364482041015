"""Writes `examples/documents/`, pages about mistakes in arithmetic, and `examples/queries.jsonl`, questions about them.

Both are made from `examples/misconceptions.jsonl`: python -m benchmarks.misconceptions.documents

A page has the mistakes that students make with one skill, each with an example. A query is a question of a student that
is no example of a page; its document is the page of the skill.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ratchet.data.formats.examples import FILE
from ratchet.data.formats.text_files import read_json_objects

QUERIES_PER_PAGE = 13
PHRASINGS = (
    "{question}",
    "{question} Is it {right} or {wrong}?",
    "Why is {wrong} not right? {question}",
)
SECTION = """\
## {title}

{sentence}

Example: {question} The correct answer is {right}. With this mistake it becomes {wrong}.
"""


def write_documents(folder: Path) -> None:
    """Write `documents/*.md` and `queries.jsonl` into a folder. The same bytes each time."""
    sentences: dict[str, str] = {}
    questions: dict[str, list[dict[str, Any]]] = {}
    for _, row in read_json_objects(FILE):
        if "misconception" in row:
            sentences[row["id"]] = row["misconception"]
        else:
            questions.setdefault(row["construct"], []).append(row)
    (folder / "documents").mkdir(exist_ok=True)
    queries: list[str] = []
    for construct, rows in sorted(questions.items()):
        examples: dict[str, dict[str, str]] = {}
        for row in rows:
            for name, answer in list_wrong_answers(row):
                examples.setdefault(name, answer)
        page = [f"# {construct}\n"]
        for name, example in sorted(examples.items()):
            title = name.partition(".")[2].replace("_", " ").capitalize()
            page.append(SECTION.format(title=title, sentence=sentences[name], **example))
        file = re.sub(r"\W+", "-", construct.lower()) + ".md"
        (folder / "documents" / file).write_text("\n".join(page), "utf-8")

        shown = {example["question"] for example in examples.values()}
        others = [row for row in rows if row["question"] not in shown]
        for row in others[:QUERIES_PER_PAGE]:
            _, answer = list_wrong_answers(row)[0]
            text = PHRASINGS[len(queries) % len(PHRASINGS)].format(**answer)
            query = {"query": text, "document": file}
            queries.append(json.dumps(query, ensure_ascii=False) + "\n")
    (folder / "queries.jsonl").write_text("".join(queries), "utf-8")


def list_wrong_answers(row: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Return (id of the misconception, {question, right, wrong}) of each wrong option of a question."""
    right = row["options"][row["misconceptions"].index(None)]
    found = []
    for option, name in zip(row["options"], row["misconceptions"], strict=True):
        if name is not None:
            found.append((name, {"question": row["question"], "right": right, "wrong": option}))
    return found


if __name__ == "__main__":
    write_documents(FILE.parent)
