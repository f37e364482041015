"""The questions of the recipe `quickstart`: `examples/misconceptions.jsonl`."""

from pathlib import Path

from ratchet.data.formats.eedi import format_query
from ratchet.data.formats.text_files import read_json_objects
from ratchet.data.retrieval import Document, Query, RetrievalData

FILE = Path(__file__).parents[2] / "examples" / "misconceptions.jsonl"
QUESTIONS = 800
"""Number of questions in the file."""


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
