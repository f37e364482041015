"""Parser for arithmetic that a model wrote: bounded and exact; the text is never executed."""

from __future__ import annotations

import ast
import itertools
from fractions import Fraction

MAX_CHARACTERS = 200
MAX_DIGITS = 12
MAX_DEPTH = 40
ALLOWED = frozenset("0123456789+-*/() \t\n")
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


class BadExpression(ValueError):
    """The text is not arithmetic, is too large, or has no value."""


def parse(text: str) -> tuple[Fraction, list[int], list[str]]:
    """Return (exact value, numbers in order of appearance, operations) of an expression of integers, +, -, *, /, signs
    and parentheses. Operations are innermost first, as `76 - 47 = 29`.

    Raises BadExpression for everything else: other characters (so no names, powers or digits of other scripts), more
    than MAX_CHARACTERS characters, more than MAX_DIGITS digits in a number, more than MAX_DEPTH open parentheses, a
    division by 0."""
    if len(text) > MAX_CHARACTERS:
        raise BadExpression(f"{len(text)} characters; expected at most {MAX_CHARACTERS}")
    if not ALLOWED.issuperset(text):
        raise BadExpression(f"{sorted(set(text) - ALLOWED)[0]!r} is not arithmetic")
    deepest = max(
        itertools.accumulate((character == "(") - (character == ")") for character in text),
        default=0,
    )
    if deepest > MAX_DEPTH:
        raise BadExpression(f"{deepest} open parentheses; expected at most {MAX_DEPTH}")
    try:
        tree = ast.parse("".join(text.split("\n")).strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise BadExpression(str(error)) from None
    numbers: list[int] = []
    operations: list[str] = []
    try:
        return _evaluate(tree.body, numbers, operations), numbers, operations
    except ZeroDivisionError:
        raise BadExpression("division by 0") from None
    except RecursionError:
        raise BadExpression("nested too deeply") from None


def _evaluate(node: ast.expr, numbers: list[int], operations: list[str]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        if node.value >= 10**MAX_DIGITS:
            raise BadExpression(f"a number of more than {MAX_DIGITS} digits")
        numbers.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _evaluate(node.operand, numbers, operations)
        if isinstance(node.op, ast.USub):
            return -value
        return value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left = _evaluate(node.left, numbers, operations)
        right = _evaluate(node.right, numbers, operations)
        sign = OPERATORS[type(node.op)]
        value = {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[
            sign
        ](right)
        operations.append(f"{left} {sign} {right} = {value}")
        return value
    raise BadExpression(f"{type(node).__name__} is not arithmetic")
