"""GSM8K (Cobbe et al. 2021): word problems whose official answers end in `#### number`.

Tasks differ in the format of the final answer: `gsm8k` as in the official answers, `gsm8k-boxed` in a LaTeX box. The
calculator annotations of the official answers (`<<48/2=24>>`) are removed, since no calculator runs at generation;
`gsm8k-annotated` is `gsm8k` with them.
Gold answers and answers of models must be one number; rows with another one are refused.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from ratchet.data.formats.text_files import read_field, read_json_objects
from ratchet.data.tasks.task import CORRECT, Sample, Task, Verification
from ratchet.errors import DataError

NOTES = re.compile(r"<<[^<>]*>>")
FAILURES = ("missing_answer", "not_a_number", "wrong_value")
SIGN = "####"
BOX = r"\boxed{"
DIGITS = r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]{1,20})?|[0-9]{1,20}(?:\.[0-9]{1,20})?|\.[0-9]{1,20}"
NUMBER = re.compile(rf"(-?) *({DIGITS})(?: */ *({DIGITS}))?")
MARKUP = (
    (re.compile("[\u2212\u2013]"), "-"),
    (re.compile(r"\{,\}|\\[,!]"), ""),  # between thousands
    (re.compile(r"[$€£¥₹]"), ""),
    (re.compile(r"\\[dt]?frac *\{([^{}]*)\}\{([^{}]*)\}"), r" \1/\2"),
)
"""Signs and LaTeX in a number -> plain text."""
OTHER_VALUE = re.compile(
    r"[½¼¾]|[0-9][kKM]\b|\b(?i:half|dozen|hundred|thousand|million|billion|squared|minus|negative|not)\b"
)
"""What gives the digits beside it another value: `1.5 million`, `3½`, `minus 5`."""


def extract_after_sign(text: str) -> str | None:
    """Return the line after the last `####`."""
    _, sign, rest = text.rpartition(SIGN)
    if sign:
        return rest.strip().split("\n")[0]
    return None


def extract_boxed(text: str) -> str | None:
    r"""Return the content of the last closed `\boxed{...}`."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth = 1
    for at in range(start + len(BOX), len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return text[start + len(BOX) : at]
    return None


def parse_number(text: str) -> Fraction | None:
    """Return the only number of a text, such as `18`, `$1,080`, `18 eggs` or `x = 1/2`. None for none, and for several:
    `3 1/2`, `2 + 10 = 12`, `10^3`; and for words that change its value, such as `1.5 million`."""
    for pattern, plain in MARKUP:
        text = pattern.sub(plain, text)
    found = NUMBER.findall(text)
    if len(found) != 1 or OTHER_VALUE.search(text):
        return None
    sign, above, below = (part.replace(",", "") for part in found[0])
    divisor = Fraction(below or 1)
    if not divisor:
        return None
    return Fraction(sign + above) / divisor


def format_number(value: Fraction) -> str:
    """Return the exact text of a number: a decimal, or a fraction where no decimal of 28 digits is exact."""
    decimal = Decimal(value.numerator) / value.denominator
    if Fraction(decimal) == value:
        return f"{decimal:f}"
    return str(value)


def classify(gold: str, text: str, extract: Callable[[str], str | None]) -> str:
    """Return `correct`, or the first of FAILURES that applies. extract: finds the final answer in a text."""
    answer = extract(text)
    if answer is None:
        return "missing_answer"
    value = parse_number(answer)
    if value is None:
        return "not_a_number"
    if value == Fraction(gold):
        return CORRECT
    return "wrong_value"


def _make_task(
    name: str,
    ending: str,
    target: str,
    extract: Callable[[str], str | None],
    *,
    is_annotated: bool = False,
) -> Task:
    """Make a task. ending: the form of the answer, for the prompt. target: format string of reasoning and value.
    is_annotated: whether calculator annotations are kept."""

    def read(path: Path) -> Iterator[Sample]:
        for number, (where, row) in enumerate(read_json_objects(path)):
            question = read_field(where, row, "question", str)
            answer = read_field(where, row, "answer", str)
            reasoning, sign, _ = answer.rpartition(SIGN)
            value = parse_number(extract_after_sign(answer) or "")
            if not question.strip() or not sign or value is None:
                raise DataError(
                    f"{where}: answer {answer[-60:]!r}; expected a question, and an answer that ends in one number, as"
                    " in '#### 42'; correct or remove the row"
                )
            asked = f"Solve the problem step by step. End with the answer {ending}.\n\n{question}"
            gold = format_number(value)
            if not is_annotated:
                reasoning = NOTES.sub("", reasoning)
            turn = (asked, target.format(reasoning=reasoning.strip(), value=gold))
            name = str(number)
            yield Sample(name, name, "", (turn,), {"answer": gold}, where)

    def verify(gold: Any, answers: Sequence[str]) -> list[Verification]:
        return [Verification(classify(gold["answer"], answers[0], extract))]

    return Task(name, read, verify, FAILURES)


OFFICIAL: tuple[str, str, Callable[[str], str | None]] = (
    "on a line of its own, as in '#### 42'",
    "{reasoning}\n#### {value}",
    extract_after_sign,
)
TASK = _make_task("gsm8k", *OFFICIAL)
ANNOTATED = _make_task("gsm8k-annotated", *OFFICIAL, is_annotated=True)
BOXED = _make_task(
    "gsm8k-boxed",
    "in a box, as in '\\boxed{42}'",
    "{reasoning}\nThe answer is \\boxed{{{value}}}",
    extract_boxed,
)
