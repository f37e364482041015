"""Eedi's `train.csv` and `misconception_mapping.csv`: each labelled wrong answer is one query."""

from __future__ import annotations

from pathlib import Path

from ratchet.data.formats.text_files import fill_template, read_csv, show
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


def read(path: Path, *, labelled: bool = True, template: str = "") -> RetrievalData:
    """Read a folder: queries `{QuestionId}_{letter}`, grouped by question. Without `labelled`, read every wrong answer
    of a CSV file such as Eedi's `test.csv`. template: the text of a query, with columns of the file and
    {CorrectAnswerText} and {WrongAnswerText}; empty: `format_query`. Raises DataError naming file and line."""
    corpus = []
    if labelled:
        for where, row in read_csv(path / MAPPING, ("MisconceptionId", "MisconceptionName")):
            name = row["MisconceptionId"]
            text = row["MisconceptionName"]
            if not text.strip():
                raise DataError(
                    f"{where}: document '{name}' has no text; expected some; remove it or fill it"
                )
            corpus.append(Document(name, text, where))
    known = set()
    for document in corpus:
        known.add(document.id)
    queries: list[Query] = []
    unlabelled = 0
    for where, row in (
        read_csv(path / "train.csv", COLUMNS)
        if labelled
        else read_csv(path, COLUMNS[: -len(LETTERS)])
    ):
        correct = row["CorrectAnswer"]
        if correct not in LETTERS or not correct:
            raise DataError(
                f"{where}: CorrectAnswer is {show(correct)}; expected one of A, B, C, D; correct it"
            )
        for letter in LETTERS:
            if labelled:
                label = row[f"Misconception{letter}Id"].strip()
            else:
                label = ""
            if letter == correct:
                continue
            if labelled and not label:
                unlabelled += 1
                continue
            # The file writes ids as floats: 1672.0
            label = label.removesuffix(".0")
            if labelled and label not in known:
                raise DataError(
                    f"{where}: Misconception{letter}Id is {show(label)}; {MAPPING} has no such id; add it"
                )
            if not row[f"Answer{letter}Text"].strip():
                raise DataError(
                    f"{where}: Answer{letter}Text is empty, but is a wrong answer; expected its text; fill it"
                )
            right = row[f"Answer{correct}Text"]
            wrong = row[f"Answer{letter}Text"]
            if template:
                text = fill_template(
                    where, template, {**row, "CorrectAnswerText": right, "WrongAnswerText": wrong}
                )
            else:
                text = format_query(row["QuestionText"], row["ConstructName"], right, wrong)
            labels = (label,) * labelled
            name = f"{row['QuestionId']}_{letter}"
            queries.append(
                Query(name, text, labels, (1,) * labelled, group=row["QuestionId"], where=where)
            )
    return RetrievalData(corpus, queries, {"wrong answers without a label, left out": unlabelled})
