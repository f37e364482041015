"""Countdown: combine the given numbers, each exactly once, into an equation that equals a target.

Rows have `nums` and `target`, as JSONL or Parquet. A row without a `solution` gets one from ratchet.data.tasks.solver.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ratchet.data.formats.table_files import read_table
from ratchet.data.formats.text_files import read_field, read_json_objects, show
from ratchet.data.tasks.expressions import BadExpression, parse
from ratchet.data.tasks.solver import solve
from ratchet.data.tasks.task import CORRECT, Sample, Task, Verification
from ratchet.errors import DataError

OPEN = "<answer>"
CLOSE = "</answer>"
PROMPT = (
    "Combine the numbers {numbers} into an equation that equals {target}. Use each number exactly once, and no"
    " operations but +, -, * and /. Think step by step between <think> and </think>, then give the equation between"
    " <answer> and </answer>, as in <answer>(1 + 2) * 3 = 9</answer>."
)
MAX_SOLVED = 6
"""Most numbers for which a missing solution is computed. Each further number takes about 40 times as long."""
FAILURES = (
    "missing_answer_tags",
    "lhs_parse_or_eval_error",
    "invalid_number_usage",
    "rhs_parse_or_eval_error",
    "equation_not_balanced",
    "wrong_value",
)
"""Names and order of https://github.com/oumi-ai/oumi/blob/2a91dba/gold/metrics.py, whose results are published."""
SIGNS = str.maketrans("×÷−", "*/-")
"""Signs of multiplication, division and subtraction that models write -> those of Python."""


def extract_answer(text: str) -> str | None:
    """Return the text in the last complete pair of tags."""
    close = max(text.rfind(CLOSE), 0)
    start = text.rfind(OPEN, 0, close)
    if start < 0:
        return None
    return text[start + len(OPEN) : close]


def classify(numbers: Sequence[int], target: int, text: str) -> str:
    """Return `correct`, or the first of FAILURES that applies. The last equals sign divides the equation. Without one,
    or with nothing after it, the answer is the left-hand side alone."""
    answer = (extract_answer(text) or "").translate(SIGNS)
    if not answer.strip():
        return "missing_answer_tags"
    left, equals, right = answer.rpartition("=")
    if not equals:
        left, right = answer, ""
    try:
        value, used, _ = parse(left)
    except BadExpression:
        return "lhs_parse_or_eval_error"
    if sorted(used) != sorted(numbers):
        return "invalid_number_usage"
    if right.strip():
        try:
            other, _, _ = parse(right)
        except BadExpression:
            return "rhs_parse_or_eval_error"
        if value != other:
            return "equation_not_balanced"
    if value == target:
        return CORRECT
    return "wrong_value"


def verify(gold: Any, answers: Sequence[str]) -> list[Verification]:
    """Verify the only answer. gold: `nums` and `target`."""
    return [Verification(classify(gold["nums"], gold["target"], answers[0]))]


def make_sample(
    number: int, numbers: Sequence[int], target: int, solution: str, where: str = ""
) -> Sample:
    """Return a row as a sample. Raises DataError for a solution that is not arithmetic."""
    try:
        thought = "\n".join(parse(solution)[2])
    except BadExpression as error:
        raise DataError(
            f"{where}: the solution {show(solution)}: {show(str(error))}; expected + - * / over the"
            " numbers; correct the row"
        ) from None
    question = PROMPT.format(numbers=list(numbers), target=target)
    target_text = f"<think>{thought}</think>\n{OPEN}{solution} = {target}{CLOSE}"
    gold = {"nums": list(numbers), "target": target}
    return Sample(str(number), str(number), "", ((question, target_text),), gold, where)


def read(path: Path) -> Iterator[Sample]:
    """Yield the rows of a file as samples. Raises DataError for an invalid or unsolvable row."""
    rows = read_table(path) if path.suffix == ".parquet" else read_json_objects(path)
    for number, (where, row) in enumerate(rows):
        numbers = read_field(where, row, "nums", list)
        target = read_field(where, row, "target", int)
        if not numbers or not all(type(one) is int and one >= 0 for one in numbers):
            raise DataError(
                f"{where}: nums is {show(numbers)}; expected non-negative integers; correct the row"
            )
        solution = read_field(where, row, "solution", str, None)
        if not solution and len(numbers) <= MAX_SOLVED:
            solution = solve(numbers, target)
        if not solution:
            raise DataError(
                f"{where}: {show(target)} cannot be reached from {show(numbers)}; expected a task that is solvable,"
                f" with at most {MAX_SOLVED} nums or a solution; correct the row"
            )
        yield make_sample(number, numbers, target, solution, where)


def key(sample: Sample) -> str:
    """Return the sorted numbers and the target: a question is the same in any order of its numbers."""
    return f"{sorted(sample.gold['nums'])} {sample.gold['target']}"


TASK = Task("countdown", read, verify, FAILURES, stop=(CLOSE,), key=key)
