"""SQuAD v1.1 (Rajpurkar et al. 2016): questions on passages, answered by spans of them.

Three ways of asking a passage's questions, each a task of its own:

    squad-batch        every question in a prompt of its own with the passage, all of them at once
    squad-sequential   one conversation: each question after the answers to those before it
    squad-together     all questions, numbered, in one prompt; the answers as numbered lines

EM and F1 are those of the official script: lower case, no punctuation, no articles, single spaces, the best of several
golds. Lenient: one of the two contains the other, both not empty.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.tasks.task import CORRECT, Example, Task, Verdict
from data.text_files import text_of

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
NUMBERED = re.compile(r"^\s*([0-9]{1,3})[.):]\s*(.*)$", re.MULTILINE)
SYSTEM = "Answer questions on a passage. Answer with the shortest span of the passage that answers, and nothing else."
TOGETHER = (
    " There are several questions: answer each on a line of its own that begins with its number, as in '1. Rome'."
)
VERDICTS = ("empty", "wrong", "partial")
SCORES = ("em", "f1", "lenient")


def normalised(text: str) -> str:
    """As the official script does, in its order."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def f1(prediction: str, gold: str) -> float:
    """Of the two bags of words, normalised."""
    found, wanted = normalised(prediction).split(), normalised(gold).split()
    same = sum((Counter(found) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(found), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def scores(prediction: str, golds: Sequence[str]) -> dict[str, float]:
    """em, f1 and lenient: the best over the golds."""
    found, wanted = normalised(prediction), [normalised(gold) for gold in golds]
    return {
        "em": float(found in wanted),
        "f1": max(f1(prediction, gold) for gold in golds),
        "lenient": float(
            any(found and gold and (found in gold or gold in found) for gold in wanted) or found in wanted
        ),
    }


def _verdict(answer: str, golds: Sequence[str]) -> Verdict:
    found = scores(answer, golds)
    if found["em"]:
        return Verdict(CORRECT, found)
    return Verdict("empty" if not answer.strip() else "partial" if found["f1"] else "wrong", found)


def judge(gold: Any, answers: Sequence[str]) -> list[Verdict]:
    """A question a turn."""
    return [_verdict(answer.strip(), golds) for answer, golds in zip(answers, gold["answers"], strict=True)]


def judge_together(gold: Any, answers: Sequence[str]) -> list[Verdict]:
    """The numbered lines of one answer; the first of a number counts."""
    lines: dict[int, str] = {}
    for number, text in NUMBERED.findall(answers[0]):
        lines.setdefault(int(number), text)
    return [_verdict(lines.get(number, "").strip(), golds) for number, golds in enumerate(gold["answers"], 1)]


def passages(path: Path) -> Iterator[tuple[str, str, list[tuple[str, str, list[str]]]]]:
    """(where, passage, [(id, question, golds)]) of an official v1.1 file. Raises DataError with the place in it."""
    try:
        articles = json.loads(text_of(path))["data"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: no SQuAD file ({type(error).__name__}: {error}); expected the official JSON with 'data'"
        ) from None
    for a, article in enumerate(articles):
        for p, paragraph in enumerate(article.get("paragraphs", []) if isinstance(article, dict) else []):
            where = f"{path}: data[{a}].paragraphs[{p}]"
            questions = []
            for q, asked in enumerate(paragraph.get("qas") or []):
                golds = [one.get("text", "") for one in asked.get("answers") or []]
                if not golds or not all(gold.strip() for gold in golds):
                    raise DataError(f"{where}.qas[{q}]: no answer; expected one or more that are not empty (v1.1)")
                questions.append((str(asked.get("id") or f"{a}-{p}-{q}"), str(asked["question"]).strip(), golds))
            if questions:
                yield where, str(paragraph["context"]), questions


def _common(golds: Sequence[str]) -> str:
    """What to train on: the answer that most annotators gave, the first of them."""
    return Counter(golds).most_common(1)[0][0]


def read_batch(path: Path) -> Iterator[Example]:
    for number, (where, passage, questions) in enumerate(passages(path)):
        for name, question, golds in questions:
            asked = f"Passage: {passage}\n\nQuestion: {question}"
            yield Example(name, f"c{number}", SYSTEM, ((asked, _common(golds)),), {"answers": [golds]}, where)


def read_sequential(path: Path) -> Iterator[Example]:
    for number, (where, passage, questions) in enumerate(passages(path)):
        turns = tuple(
            ((f"Passage: {passage}\n\n" if not q else "") + f"Question: {question}", _common(golds))
            for q, (_, question, golds) in enumerate(questions)
        )
        gold = {"answers": [golds for _, _, golds in questions]}
        yield Example(f"c{number}", f"c{number}", SYSTEM, turns, gold, where)


def read_together(path: Path) -> Iterator[Example]:
    for number, (where, passage, questions) in enumerate(passages(path)):
        asked = "\n".join(f"{q}. {question}" for q, (_, question, _) in enumerate(questions, 1))
        target = "\n".join(f"{q}. {_common(golds)}" for q, (_, _, golds) in enumerate(questions, 1))
        turns = ((f"Passage: {passage}\n\nQuestions:\n{asked}", target),)
        gold = {"answers": [golds for _, _, golds in questions]}
        yield Example(f"c{number}", f"c{number}", SYSTEM + TOGETHER, turns, gold, where)


BATCH = Task("squad-batch", read_batch, judge, VERDICTS, SCORES)
SEQUENTIAL = Task("squad-sequential", read_sequential, judge, VERDICTS, SCORES)
SQUAD_TOGETHER = Task("squad-together", read_together, judge_together, VERDICTS, SCORES)
