"""Eedi's `train.csv` and `misconception_mapping.csv`: each labelled wrong answer is one query."""

from pathlib import Path

from ratchet.data.formats.text_files import fill_template, read_csv, show
from ratchet.data.retrieval import Document, Query, RetrievalData
from ratchet.errors import DataError

LETTERS = "ABCD"
MAPPING = "misconception_mapping.csv"
QUESTION = (
    "QuestionId",
    "ConstructName",
    "CorrectAnswer",
    "QuestionText",
    *(f"Answer{letter}Text" for letter in LETTERS),
)
LABELS = tuple(f"Misconception{letter}Id" for letter in LETTERS)
TASK = (
    "Given a multiple choice math question and a student's incorrect answer choice, identify and retrieve the specific"
    " mathematical misconception or error in the student's thinking that led to this wrong answer."
)
"""Instruction for embedders, with which https://github.com/rsliu94/FlagEmbedding trains."""
PROMPT = (
    "Given a query A and a passage B, determine whether the passage B explains the mathematical misconception that"
    ' leads to the wrong answer in query A by providing a prediction of either "Yes" or "No".'
)
"""Prompt for rerankers, from the same place."""


def format_query(question: str, hint: str, correct: str, wrong: str) -> str:
    """Format the text of a query: the question, its construct, the correct and the wrong answer."""
    return f"Question: {question}\nHint: {hint}\nCorrect answer: {correct}\nWrong answer: {wrong}"


def is_known(path: Path, *, labelled: bool) -> bool:
    """Return whether a path has data in this format."""
    if (path / MAPPING).exists():
        return True
    if labelled:
        return False
    if path.suffix == ".csv":
        rows = read_csv(path, ())
        return "QuestionText" in next(rows, ("", {}))[1]
    return (path / "test.csv").exists()


def read(path: Path, *, labelled: bool = True, template: str = "") -> RetrievalData:
    """Read a folder: queries `{QuestionId}_{letter}`, grouped by question. Without `labelled`, read every wrong answer
    of a CSV file such as Eedi's `test.csv`, or of a folder with `test.csv` or `train.csv`. template: the text of a
    query, with columns of the file and {CorrectAnswerText} and {WrongAnswerText}; empty: `format_query`. Raises
    DataError naming file and line."""
    corpus = []
    columns = QUESTION
    file = path
    if labelled:
        columns = QUESTION + LABELS
        for where, row in read_csv(path / MAPPING, ("MisconceptionId", "MisconceptionName")):
            name = row["MisconceptionId"]
            if not row["MisconceptionName"].strip():
                raise DataError(
                    f"{where}: document '{name}' has no text; expected some; remove it or fill it"
                )
            corpus.append(Document(name, row["MisconceptionName"], where))
    if path.is_dir():
        file = path / "train.csv"
        if not labelled and (path / "test.csv").exists():
            file = path / "test.csv"
    known = {document.id for document in corpus}
    queries = []
    unlabelled = 0
    for where, row in read_csv(file, columns):
        correct = row["CorrectAnswer"]
        if correct not in tuple(LETTERS):
            raise DataError(
                f"{where}: CorrectAnswer is {show(correct)}; expected one of A, B, C, D; correct it"
            )
        right = row[f"Answer{correct}Text"]
        for letter in LETTERS.replace(correct, ""):
            wrong = row[f"Answer{letter}Text"]
            labels: tuple[str, ...] = ()
            if labelled:
                # The file writes ids as floats: 1672.0
                label = row[f"Misconception{letter}Id"].strip().removesuffix(".0")
                if not label:
                    unlabelled += 1
                    continue
                if label not in known:
                    raise DataError(
                        f"{where}: Misconception{letter}Id is {show(label)}; {MAPPING} has no such id; add it"
                    )
                labels = (label,)
            if not wrong.strip():
                raise DataError(
                    f"{where}: Answer{letter}Text is empty, but is a wrong answer; expected its text; fill it"
                )
            text = format_query(row["QuestionText"], row["ConstructName"], right, wrong)
            if template:
                answers = {"CorrectAnswerText": right, "WrongAnswerText": wrong}
                text = fill_template(where, template, row | answers)
            name = f"{row['QuestionId']}_{letter}"
            grades = (1,) * len(labels)
            query = Query(name, text, labels, grades, group=row["QuestionId"], where=where)
            topics = (row.get("ConstructId", ""), row.get("SubjectId", ""))
            queries.append(query._replace(task=TASK, prompt=PROMPT, topics=topics))
    return RetrievalData(corpus, queries, {"wrong answers without a label, left out": unlabelled})
