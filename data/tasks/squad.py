"""SQuAD v1.1 (Rajpurkar et al. 2016): questions on passages, answered by spans of the passage.

Two prompting strategies, each a task of its own:

    squad-batch        each question in its own prompt with the passage, all in one batch
    squad-sequential   one conversation, each question after the answers to the previous ones

EM and F1 follow the official script: lower case, no punctuation, no articles, single spaces, the best of several gold
answers. Lenient: EM, or one of the two contains the other and neither is empty.
"""

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.data.formats.text_files import parse_json, read_field, show
from ratchet.data.retrieval.checks import refuse_repeated
from ratchet.data.tasks.task import CORRECT, Sample, Task, Verification
from ratchet.errors import DataError
from ratchet.files import read_text

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
SYSTEM = "Answer questions on a passage. Answer with the shortest span of the passage that answers, and nothing else."
FAILURES = ("empty", "wrong", "partial")
SCORES = ("em", "f1", "lenient")
Question = tuple[str, str, list[str]]
"""(id, question, gold answers)."""
Limits = tuple[int, int]
"""Least and most questions of a passage."""


def normalize(text: str) -> str:
    """Normalize a text as the official script does, in the same order."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def f1(prediction: str, gold: str) -> float:
    """Return F1 of the two normalized bags of words."""
    found = normalize(prediction).split()
    wanted = normalize(gold).split()
    same = sum((Counter(found) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision = same / len(found)
    recall = same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def score(prediction: str, golds: Sequence[str]) -> dict[str, float]:
    """Return em, f1 and lenient: the best over the gold answers."""
    found = normalize(prediction)
    wanted = [normalize(gold) for gold in golds]
    is_same = found in wanted
    is_part = any(found and gold and (found in gold or gold in found) for gold in wanted)
    return {
        "em": float(is_same),
        "f1": max(f1(prediction, gold) for gold in golds),
        "lenient": float(is_same or is_part),
    }


def verify(gold: Any, answers: Sequence[str]) -> list[Verification]:
    """Verify one answer per turn."""
    found = []
    for answer, golds in zip(answers, gold["answers"], strict=True):
        scores = score(answer, golds)
        label = "wrong"
        if scores["em"]:
            label = CORRECT
        elif not answer.strip():
            label = "empty"
        elif scores["f1"]:
            label = "partial"
        found.append(Verification(label, scores))
    return found


def draw_questions(
    questions: list[Question], limits: Limits, random: np.random.Generator
) -> list[Question]:
    """Draw a number of questions within the limits, in random order; none of a passage with fewer than the least. As
    `load_squad_groups` of https://github.com/Fzkuji/parallel-agent does."""
    least, most = limits
    if len(questions) < least:
        return []
    count = random.integers(least, min(most, len(questions)), endpoint=True)
    return [questions[i] for i in random.permutation(len(questions))[:count]]


def read_passages(
    path: Path, limits: Limits | None, seed: int
) -> Iterator[tuple[dict[str, str], str, list[Question]]]:
    """Yield (place, passage, questions) of an official v1.1 file. The place holds the fields `where` and `document`
    (the article) of a Sample. Raises DataError with the place.

    limits: see `draw_questions`; None: all questions. The draw depends on the seed and the passage alone, so that both
    strategies ask the same questions."""
    where = str(path)
    document = parse_json(where, read_text(path), "the official JSON of SQuAD; give that file")
    places: dict[str, str] = {}
    try:
        for a, article in enumerate(read_field(where, document, "data", list)):
            where = f"{path}: data[{a}]"
            for p, paragraph in enumerate(read_field(where, article, "paragraphs", list)):
                where = f"{path}: data[{a}].paragraphs[{p}]"
                passage = read_field(where, paragraph, "context", str)
                questions = []
                for q, asked in enumerate(read_field(where, paragraph, "qas", list)):
                    questions.append(_read_question(f"{where}.qas[{q}]", asked, passage, places))
                if limits is not None:
                    random = np.random.default_rng([seed, a, p])
                    questions = draw_questions(questions, limits, random)
                if questions:
                    yield {"where": where, "document": f"a{a}"}, passage, questions
    except AttributeError:
        raise DataError(
            f"{where}: other values given than objects; expected the official JSON of SQuAD v1.1; convert the file"
        ) from None


def _read_question(
    where: str, asked: dict[str, Any], passage: str, places: dict[str, str]
) -> Question:
    """Return a question. places: id -> where it stands."""
    name = read_field(where, asked, "id", str)
    question = read_field(where, asked, "question", str).strip()
    refuse_repeated(places, name, where, "question id")
    golds = []
    for answer in read_field(where, asked, "answers", list):
        golds.append(read_field(where, answer, "text", str))
    if not question or not golds or not all(gold.strip() and gold in passage for gold in golds):
        raise DataError(
            f"{where}: question {show(question)} with answers {show(golds)}; expected a question with one or more spans"
            " of the context (v1.1); correct it"
        )
    return name, question, golds


def _most_common(golds: Sequence[str]) -> str:
    """Return the target to train on: the answer of most annotators, the first one on a tie."""
    return Counter(golds).most_common(1)[0][0]


def read_batch(path: Path, limits: Limits | None, seed: int) -> Iterator[Sample]:
    """Yield a sample per question; questions on one passage are a group."""
    for number, (place, passage, questions) in enumerate(read_passages(path, limits, seed)):
        for name, question, golds in questions:
            asked = f"Passage: {passage}\n\nQuestion: {question}"
            yield Sample(
                name,
                f"c{number}",
                SYSTEM,
                ((asked, _most_common(golds)),),
                {"answers": [golds]},
                **place,
            )


def read_sequential(path: Path, limits: Limits | None, seed: int) -> Iterator[Sample]:
    """Yield a sample per passage, with a turn per question. The first turn has the passage."""
    for number, (place, passage, questions) in enumerate(read_passages(path, limits, seed)):
        turns: list[tuple[str, str]] = []
        answers = []
        for _, question, golds in questions:
            asked = f"Question: {question}"
            if not turns:
                asked = f"Passage: {passage}\n\n{asked}"
            turns.append((asked, _most_common(golds)))
            answers.append(golds)
        yield Sample(
            f"c{number}", f"c{number}", SYSTEM, tuple(turns), {"answers": answers}, **place
        )


READERS = {"squad-batch": read_batch, "squad-sequential": read_sequential}


def make_task(name: str, limits: Limits | None = None, seed: int = 0) -> Task:
    """Make the task of a strategy. limits: least and most questions of a passage. seed: seed of the questions drawn."""
    read = partial(READERS[name], limits=limits, seed=seed)
    return Task(name, read, verify, FAILURES, SCORES)
