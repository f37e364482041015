"""Parser for arithmetic that a model wrote: bounded and exact; the text is never executed."""

import ast
import operator
from fractions import Fraction

MAX_CHARACTERS = 200
ALLOWED = frozenset("0123456789+-*/() \t\n")
OPERATORS = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
}


class BadExpression(ValueError):
    """The text is not arithmetic, is too large, or has no value."""


def parse(text: str) -> tuple[Fraction, list[int], list[str]]:
    """Return (exact value, numbers in order of appearance, operations) of an expression of integers, +, -, *, /, signs
    and parentheses. Operations are innermost first, as `76 - 47 = 29`.

    Raises BadExpression for everything else: other characters (so no names, powers or digits of other scripts), more
    than MAX_CHARACTERS characters, a division by 0."""
    if len(text) > MAX_CHARACTERS:
        raise BadExpression(f"{len(text)} characters; expected at most {MAX_CHARACTERS}")
    if not ALLOWED.issuperset(text):
        raise BadExpression(f"{sorted(set(text) - ALLOWED)[0]!r} is not arithmetic")
    numbers: list[int] = []
    operations: list[str] = []
    try:
        tree = ast.parse(text.replace("\n", "").strip(), mode="eval")
        return _evaluate(tree.body, numbers, operations), numbers, operations
    except (SyntaxError, MemoryError, RecursionError, ZeroDivisionError) as error:
        raise BadExpression(str(error)) from None


def _evaluate(node: ast.expr, numbers: list[int], operations: list[str]) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
        return _evaluate(node.operand, numbers, operations)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand, numbers, operations)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left = _evaluate(node.left, numbers, operations)
        right = _evaluate(node.right, numbers, operations)
        sign, compute = OPERATORS[type(node.op)]
        value: Fraction = compute(left, right)
        operations.append(f"{left} {sign} {right} = {value}")
        return value
    raise BadExpression(f"{type(node).__name__} is not arithmetic")
