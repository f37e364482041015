"""Few-shot examples: JSON Lines with `query` and `answer` (`response`, as FlagEmbedding names it, works too)."""

import json
from collections.abc import Sequence
from pathlib import Path

from ratchet.data.formats.text_files import read_field, read_json_objects
from ratchet.errors import DataError


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
