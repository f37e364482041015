"""SQuAD v1.1 (Rajpurkar et al. 2016): questions on passages, answered by spans of the passage.

Two prompting strategies, each a task of its own:

    squad-batch        each question in its own prompt with the passage, all in one batch
    squad-sequential   one conversation, each question after the answers to the previous ones

EM and F1 follow the official script: lower case, no punctuation, no articles, single spaces, the best of several gold
answers. Lenient: EM, or one of the two contains the other and neither is empty.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
    return {
        "em": float(found in wanted),
        "f1": max(f1(prediction, gold) for gold in golds),
        "lenient": float(
            any(found and gold and (found in gold or gold in found) for gold in wanted)
            or found in wanted
        ),
    }


def _verify_answer(answer: str, golds: Sequence[str]) -> Verification:
    found = score(answer, golds)
    if found["em"]:
        return Verification(CORRECT, found)
    return Verification(
        "empty" if not answer.strip() else "partial" if found["f1"] else "wrong", found
    )


def verify(gold: Any, answers: Sequence[str]) -> list[Verification]:
    """Verify one answer per turn."""
    found: list[Verification] = []
    for answer, golds in zip(answers, gold["answers"], strict=True):
        found.append(_verify_answer(answer.strip(), golds))
    return found


def read_passages(
    path: Path,
) -> Iterator[tuple[dict[str, str], str, list[tuple[str, str, list[str]]]]]:
    """Yield (place, passage, [(id, question, golds)]) of an official v1.1 file. The place holds the fields `where` and
    `document` (the article) of a Sample. Raises DataError with the place."""
    document = parse_json(str(path), read_text(path), "the official JSON of SQuAD; give that file")
    places: dict[str, str] = {}
    for a, article in enumerate(_read_objects(f"{path}", document, "data")):
        for p, paragraph in enumerate(_read_objects(f"{path}: data[{a}]", article, "paragraphs")):
            where = f"{path}: data[{a}].paragraphs[{p}]"
            passage = read_field(where, paragraph, "context", str)
            questions = []
            for q, asked in enumerate(_read_objects(where, paragraph, "qas")):
                questions.append(_read_question(f"{where}.qas[{q}]", asked, passage, places))
            if questions:
                yield {"where": where, "document": f"a{a}"}, passage, questions


def _read_question(
    where: str, asked: dict[str, Any], passage: str, places: dict[str, str]
) -> tuple[str, str, list[str]]:
    """Return (id, question, golds). places: id -> where it stands."""
    name = read_field(where, asked, "id", str)
    question = read_field(where, asked, "question", str).strip()
    refuse_repeated(places, name, where, "question id")
    golds = []
    for n, one in enumerate(_read_objects(where, asked, "answers")):
        golds.append(read_field(f"{where}.answers[{n}]", one, "text", str))
    if not question or not golds or not all(gold.strip() for gold in golds):
        raise DataError(
            f"{where}: no {'answer' if question else 'question'}; expected a question with one or more non-empty"
            " answers (v1.1); correct it"
        )
    if unknown := [gold for gold in golds if gold not in passage]:
        raise DataError(
            f"{where}: answer {show(unknown[0])} is not in the context; expected a span of it; correct the answer"
        )
    return name, question, golds


def _read_objects(where: str, holder: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(holder, dict):
        raise DataError(
            f"{where}: {type(holder).__name__} given; expected an object with '{name}', as in the official JSON of"
            " SQuAD v1.1; convert the file"
        )
    values: list[dict[str, Any]] = read_field(where, holder, name, list)
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise DataError(
                f"{where}: {name}[{number}] is {type(value).__name__}; expected an object, as in the official JSON of"
                " SQuAD v1.1; convert the file"
            )
    return values


def _most_common(golds: Sequence[str]) -> str:
    """Return the target to train on: the answer of most annotators, the first one on a tie."""
    return Counter(golds).most_common(1)[0][0]


def read_batch(path: Path) -> Iterator[Sample]:
    """Yield a sample per question; questions on one passage are a group."""
    for number, (place, passage, questions) in enumerate(read_passages(path)):
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


def read_sequential(path: Path) -> Iterator[Sample]:
    """Yield a sample per passage, with a turn per question. The first turn has the passage."""
    for number, (place, passage, questions) in enumerate(read_passages(path)):
        turns = tuple(
            (
                (f"Passage: {passage}\n\n" if not q else "") + f"Question: {question}",
                _most_common(golds),
            )
            for q, (_, question, golds) in enumerate(questions)
        )
        gold = {"answers": [golds for _, _, golds in questions]}
        yield Sample(f"c{number}", f"c{number}", SYSTEM, turns, gold, **place)


BATCH = Task("squad-batch", read_batch, verify, FAILURES, SCORES)
SEQUENTIAL = Task("squad-sequential", read_sequential, verify, FAILURES, SCORES)
