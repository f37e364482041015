"""Countdown: combine the given numbers, each exactly once, into an equation that reaches a target.

Rows: `nums` and `target`, as JSONL or Parquet; with a `solution`, or one is searched for (data.tasks.solver).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.tasks.expressions import BadExpression, parse, steps
from data.tasks.solver import solve
from data.tasks.task import CORRECT, Example, Task, Verdict
from data.text_files import field_of, jsonl_rows

OPEN, CLOSE = "<answer>", "</answer>"
PROMPT = (
    "Combine the numbers {numbers} into an equation that equals {target}. Use each number exactly once, and no"
    " operations but +, -, * and /. Think step by step between <think> and </think>, then give the equation between"
    " <answer> and </answer>, as in <answer>(1 + 2) * 3 = 9</answer>."
)
VERDICTS = (
    "missing_answer_tags",
    "lhs_parse_or_eval_error",
    "rhs_parse_or_eval_error",
    "equation_not_balanced",
    "invalid_number_usage",
    "wrong_value",
)


def answer_of(text: str) -> str | None:
    """What stands in the last complete pair of tags."""
    close = text.rfind(CLOSE)
    start = text.rfind(OPEN, 0, close) if close >= 0 else -1
    return None if start < 0 else text[start + len(OPEN) : close]


def verdict(numbers: Sequence[int], target: int, text: str) -> str:
    """`correct`, or the first of VERDICTS that holds. Without an equals sign the expression is the left side alone."""
    answer = answer_of(text)
    if answer is None:
        return "missing_answer_tags"
    left, equals, right = answer.partition("=")
    try:
        value, used = parse(left)
    except BadExpression:
        return "lhs_parse_or_eval_error"
    if equals:
        try:
            other, _ = parse(right)
        except BadExpression:
            return "rhs_parse_or_eval_error"
        if value != other:
            return "equation_not_balanced"
    if sorted(used) != sorted(numbers):
        return "invalid_number_usage"
    return CORRECT if value == target else "wrong_value"


def judge(gold: Any, answers: Sequence[str]) -> list[Verdict]:
    return [Verdict(verdict(gold["nums"], gold["target"], answers[0]))]


def example(number: int, numbers: Sequence[int], target: int, solution: str, where: str = "") -> Example:
    """A row as it is asked. Raises DataError for a solution that is no arithmetic."""
    try:
        thought = "\n".join(steps(solution))
    except BadExpression as error:
        raise DataError(f"{where}: the solution {solution!r}: {error}; expected + - * / over the numbers") from None
    question = PROMPT.format(numbers=list(numbers), target=target)
    wanted = f"<think>{thought}</think>\n{OPEN}{solution} = {target}{CLOSE}"
    gold = {"nums": list(numbers), "target": target}
    return Example(str(number), str(number), "", ((question, wanted),), gold, where)


def read(path: Path) -> Iterator[Example]:
    rows = _parquet_rows(path) if path.suffix == ".parquet" else jsonl_rows(path)
    for number, (where, row) in enumerate(rows):
        numbers, target = field_of(where, row, "nums", list), field_of(where, row, "target", int)
        if not numbers or not all(type(one) is int and one >= 0 for one in numbers):
            raise DataError(f"{where}: nums is {numbers!r}; expected whole numbers from 0")
        solution = field_of(where, row, "solution", str, None) or solve(numbers, target)
        if solution is None:
            raise DataError(f"{where}: nothing reaches {target} from {numbers}; expected a task that can be solved")
        yield example(number, numbers, target, solution, where)


def _parquet_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; expected one; check the path") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected Parquet or .jsonl") from None
    columns = [name for name in ("nums", "target", "solution") if name in file.schema_arrow.names]
    number = 0
    for batch in file.iter_batches(4096, columns=columns):
        for row in batch.to_pylist():
            number += 1
            yield f"{path}: row {number}", row


def key(example: Example) -> str:
    return f"{sorted(example.gold['nums'])} {example.gold['target']}"


TASK = Task("countdown", read, judge, VERDICTS, stop=(CLOSE,), key=key)
