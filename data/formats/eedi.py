"""Eedi's `train.csv` and `misconception_mapping.csv`: each labelled wrong answer is one query."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ratchet.data.formats.text_files import read_csv, show
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.errors import DataError

LETTERS = "ABCD"
MAPPING = "misconception_mapping.csv"
COLUMNS = (
    "QuestionId",
    "ConstructName",
    "CorrectAnswer",
    "QuestionText",
    *(f"Answer{letter}Text" for letter in LETTERS),
    *(f"Misconception{letter}Id" for letter in LETTERS),
)


def format_query(question: str, hint: str, correct: str, wrong: str) -> str:
    """Format the text of a query: the question, its construct, the correct and the wrong answer."""
    return f"Question: {question}\nHint: {hint}\nCorrect answer: {correct}\nWrong answer: {wrong}"


def read(folder: Path) -> RetrievalData:
    """Read a folder: queries `{QuestionId}_{letter}`, grouped by question. Raises DataError naming file and line."""
    corpus = [
        Document(row["MisconceptionId"], row["MisconceptionName"], where)
        for where, row in read_csv(folder / MAPPING, ("MisconceptionId", "MisconceptionName"))
    ]
    queries, unlabelled = _read_queries(folder / "train.csv", {document.id for document in corpus})
    return RetrievalData(corpus, queries, {"wrong answers without a label, left out": unlabelled})


def read_queries(path: Path) -> list[Query]:
    """Read every wrong answer of a file such as Eedi's `test.csv`, whose columns of labels may be missing."""
    return _read_queries(path, None)[0]


def _read_queries(path: Path, known: Collection[str] | None) -> tuple[list[Query], int]:
    """Return the queries, and the number of wrong answers without a label. known: ids of documents; None: no labels."""
    queries: list[Query] = []
    unlabelled = 0
    columns = COLUMNS if known is not None else COLUMNS[: -len(LETTERS)]
    for where, row in read_csv(path, columns):
        correct = row["CorrectAnswer"]
        if correct not in LETTERS or not correct:
            raise DataError(f"{where}: CorrectAnswer is {show(correct)}; expected one of A, B, C, D; correct it")
        for letter in LETTERS:
            label = row[f"Misconception{letter}Id"].strip() if known is not None else ""
            if letter == correct:
                continue
            if known is not None and not label:
                unlabelled += 1
                continue
            # The file writes ids as floats: 1672.0
            label = label.removesuffix(".0")
            if known is not None and label not in known:
                raise DataError(f"{where}: Misconception{letter}Id is {show(label)}; {MAPPING} has no such id; add it")
            if not row[f"Answer{letter}Text"].strip():
                raise DataError(
                    f"{where}: Answer{letter}Text is empty, but has a misconception; expected its text; fill it"
                    if label
                    else f"{where}: Answer{letter}Text is empty; expected the text of a wrong answer; fill it"
                )
            text = format_query(
                row["QuestionText"], row["ConstructName"], row[f"Answer{correct}Text"], row[f"Answer{letter}Text"]
            )
            labels, name = (label,) * bool(label), f"{row['QuestionId']}_{letter}"
            queries.append(Query(name, text, labels, (1,) * len(labels), group=row["QuestionId"], where=where))
    return queries, unlabelled
