"""Few-shot examples: JSON Lines with `query` and `answer` (`response`, as FlagEmbedding names it, works too). And the
questions of the recipe `quickstart`: `examples/misconceptions.jsonl`."""

import json
from collections.abc import Sequence
from pathlib import Path

from ratchet.data.formats.eedi import format_query
from ratchet.data.formats.text_files import read_field, read_json_objects
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.errors import DataError

FILE = Path(__file__).parents[2] / "examples" / "misconceptions.jsonl"
QUESTIONS = 800
"""Number of questions in the file."""


def read_examples(path: Path | None) -> tuple[tuple[str, str], ...]:
    """Return (query, answer) of each line; without a file, nothing. Raises DataError naming file and line."""
    found = []
    for where, row in [] if path is None else read_json_objects(path):
        answer = "response" if "response" in row and "answer" not in row else "answer"
        example = read_field(where, row, "query", str), read_field(where, row, answer, str)
        if not all(text.strip() for text in example):
            raise DataError(
                f"{where}: an empty query or answer given; expected texts; fill it or remove the line"
            )
        found.append(example)
    return tuple(found)


def write_examples(path: Path, examples: Sequence[tuple[str, str]]) -> None:
    """Write (query, answer) pairs in this format."""
    lines = [json.dumps({"query": query, "answer": answer}) for query, answer in examples]
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")


def read_example_questions(count: int) -> RetrievalData:
    """Read the first `count` questions. The corpus is all misconceptions. A query is a wrong option of a question, and
    its positive is the misconception behind it."""
    corpus = []
    queries = []
    for _, row in read_json_objects(FILE):
        if "misconception" in row:
            corpus.append(Document(row["id"], row["misconception"]))
            continue
        if count == 0:
            break
        count -= 1
        right = row["options"][row["misconceptions"].index(None)]
        for number, wrong in enumerate(row["options"]):
            misconception = row["misconceptions"][number]
            if misconception is not None:
                text = format_query(row["question"], row["construct"], right, wrong)
                queries.append(
                    Query(f"{row['id']}_{number}", text, (misconception,), (1,), group=row["id"])
                )
    return RetrievalData(corpus, queries)
