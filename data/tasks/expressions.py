"""Arithmetic that a model wrote: parsed, bounded, exact, never run."""

from __future__ import annotations

import ast
from fractions import Fraction

MOST_CHARACTERS = 200
MOST_DIGITS = 12
MOST_DEPTH = 40
ALLOWED = frozenset("0123456789+-*/() \t\n")
OPERATORS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


class BadExpression(ValueError):
    """Not arithmetic, too large, or without a value."""


def parse(text: str) -> tuple[Fraction, list[int]]:
    """(exact value, the numbers in the order they stand) of +, -, *, /, parentheses, signs and whole numbers.

    Raises BadExpression for everything else: other characters (so no names, no powers, no digits of other scripts),
    more than MOST_CHARACTERS, numbers of more than MOST_DIGITS digits, more than MOST_DEPTH open parentheses, a
    division by 0.
    """
    if len(text) > MOST_CHARACTERS:
        raise BadExpression(f"{len(text)} characters; at most {MOST_CHARACTERS}")
    if not ALLOWED.issuperset(text):
        raise BadExpression(f"{sorted(set(text) - ALLOWED)[0]!r} is no arithmetic")
    depth = deepest = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise BadExpression(f"{deepest} open parentheses; at most {MOST_DEPTH}")
    try:
        tree = ast.parse("".join(text.split("\n")).strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise BadExpression(str(error)) from None
    numbers: list[int] = []
    try:
        return _value(tree.body, numbers), numbers
    except ZeroDivisionError:
        raise BadExpression("a division by 0") from None
    except RecursionError:
        raise BadExpression("too deep") from None


def steps(text: str) -> list[str]:
    """The operations of an expression one by one, innermost first: `76 - 47 = 29`. Raises BadExpression."""
    parse(text)
    done: list[str] = []
    _value(ast.parse(text.strip(), mode="eval").body, [], done)
    return done


def _value(node: ast.expr, numbers: list[int], done: list[str] | None = None) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        if node.value >= 10**MOST_DIGITS:
            raise BadExpression(f"a number of more than {MOST_DIGITS} digits")
        numbers.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand, numbers, done)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left, numbers, done), _value(node.right, numbers, done)
        sign = OPERATORS[type(node.op)]
        value = {"+": left.__add__, "-": left.__sub__, "*": left.__mul__, "/": left.__truediv__}[sign](right)
        if done is not None:
            done.append(f"{left} {sign} {right} = {value}")
        return value
    raise BadExpression(f"{type(node).__name__} is no arithmetic")
