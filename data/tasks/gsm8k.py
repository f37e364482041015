"""GSM8K (Cobbe et al. 2021): word problems whose official answers end in `#### number`.

Two tasks, which differ in how an answer ends: `gsm8k` as the official ones, `gsm8k-boxed` in LaTeX's box. The notes
to a calculator in the official answers (`<<48/2=24>>`) are left out: nobody computes them while a model writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.tasks.task import CORRECT, Example, Task, Verdict
from data.text_files import field_of, jsonl_rows

NOTES = re.compile(r"<<[^<>]*>>")
NUMBER = re.compile(r"[-+]?[0-9]{1,20}(?:,[0-9]{3})*(?:\.[0-9]{1,20})?")
VERDICTS = ("missing_answer", "not_a_number", "wrong_value")
SIGN, BOX = "####", r"\boxed{"


def number_of(text: str) -> Fraction | None:
    """The first number, signs of money and thousands left out; None where there is none."""
    found = NUMBER.search(text.replace("$", ""))
    return Fraction(found.group().replace(",", "")) if found else None


def after_sign(text: str) -> str | None:
    """The line after the last `####`."""
    _, sign, rest = text.rpartition(SIGN)
    return rest.strip().split("\n")[0] if sign else None


def in_box(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}` that is closed."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth = 1
    for at in range(start + len(BOX), len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return text[start + len(BOX) : at]
    return None


def verdict(gold: str, text: str, extract: Callable[[str], str | None]) -> str:
    answer = extract(text)
    if answer is None:
        return "missing_answer"
    value = number_of(answer)
    if value is None:
        return "not_a_number"
    return CORRECT if value == Fraction(gold) else "wrong_value"


def judge(gold: Any, answers: Sequence[str]) -> list[Verdict]:
    return [Verdict(verdict(gold["answer"], answers[0], after_sign))]


def judge_boxed(gold: Any, answers: Sequence[str]) -> list[Verdict]:
    return [Verdict(verdict(gold["answer"], answers[0], in_box))]


def _rows(path: Path) -> Iterator[tuple[str, str, str, Fraction]]:
    """(file:line, question, reasoning, answer)."""
    for where, row in jsonl_rows(path):
        question, answer = field_of(where, row, "question", str), field_of(where, row, "answer", str)
        reasoning, sign, _ = answer.rpartition(SIGN)
        value = number_of(after_sign(answer) or "")
        if not question.strip() or not sign or value is None:
            raise DataError(
                f"{where}: answer {answer[-60:]!r}; expected a question, and an answer that ends in '#### 42'"
            )
        yield where, question, NOTES.sub("", reasoning).strip(), value


def read(path: Path) -> Iterator[Example]:
    ask = "Solve the problem step by step. End with the answer on a line of its own, as in '#### 42'.\n\n"
    for number, (where, question, reasoning, value) in enumerate(_rows(path)):
        turn = (ask + question, f"{reasoning}\n{SIGN} {value}")
        yield Example(str(number), str(number), "", (turn,), {"answer": str(value)}, where)


def read_boxed(path: Path) -> Iterator[Example]:
    ask = "Solve the problem step by step. End with the answer in a box, as in '\\boxed{42}'.\n\n"
    for number, (where, question, reasoning, value) in enumerate(_rows(path)):
        turn = (ask + question, f"{reasoning}\nThe answer is {BOX}{value}}}")
        yield Example(str(number), str(number), "", (turn,), {"answer": str(value)}, where)


TASK = Task("gsm8k", read, judge, VERDICTS)
BOXED = Task("gsm8k-boxed", read_boxed, judge_boxed, VERDICTS)
