"""Mal-rules (executable wrong procedures), the problems that they apply to, and the formatting of answers.

A mal-rule (Sleeman, 1982; Brown and Burton's BUGGY, 1978) models a misconception as a systematic wrong procedure.
Arithmetic is exact (`Fraction`), so that two procedures either agree or differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from random import Random
from types import SimpleNamespace

Number = int | Fraction


class Params(SimpleNamespace):
    """The numbers of one question, by name. Two questions of a problem with equal numbers are the same question."""

    def identity(self) -> Hashable:
        return tuple(sorted((name, repr(value)) for name, value in vars(self).items()))


@dataclass(frozen=True)
class Answer:
    """An answer as written (`text`) and its value (`key`): 2/4 and 1/2 differ in text and are equal in value."""

    text: str
    key: Hashable


@dataclass(frozen=True)
class MalRule:
    """A wrong procedure. `apply` computes its answer from the numbers of a problem; None if it has none."""

    id: str
    topic: str
    sentence: str
    """One sentence that describes the misconception: the document to be retrieved."""
    apply: Callable[[Params], Answer | None]


@dataclass(frozen=True)
class Problem:
    """A problem template: the numbers to draw, phrasings, the correct procedure and the wrong ones."""

    id: str
    topic: str
    construct: str
    """The skill that is tested, as a syllabus names it."""
    draw: Callable[[Random], Params | None]
    """Draws the numbers. None: draw again."""
    phrasings: tuple[str, ...]
    """Format strings over the numbers, `words`, `name` and `other` (two different first names)."""
    correct: Callable[[Params], Answer]
    rules: tuple[MalRule, ...]
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Slots that change the story but not the problem: slot -> what may stand there."""


def phrase(expression: str, *more: str) -> tuple[str, ...]:
    """Return the usual phrasings that ask for the value of `expression`, and `more`, which are whole sentences."""
    return (
        f"Work out {expression}.",
        f"What is {expression}?",
        f"{{name}} has to find {expression}. What should {{name}} write?",
        f"{{name}} and {{other}} each work out {expression} and disagree. Which answer is right?",
        *more,
    )


def decimal(value: Number) -> str | None:
    """`value` written out exactly, such as -0.125; None where it needs more than six decimal places."""
    value = Fraction(value)
    scaled = value * 10**6
    if scaled.denominator != 1:
        return None
    digits = f"{abs(scaled.numerator):07d}"
    text = f"{digits[:-6]}.{digits[-6:]}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text


def num(value: Number, before: str = "", after: str = "") -> Answer:
    """A number as a whole number or a decimal where that is exact, else as a fraction in lowest terms."""
    value = Fraction(value)
    return Answer(f"{before}{decimal(value) or f'{value.numerator}/{value.denominator}'}{after}", value)


def ratio(top: int, bottom: int) -> Answer | None:
    """`top`/`bottom` as the student leaves it, not cancelled; None where the bottom is 0."""
    if bottom == 0:
        return None
    if bottom < 0:
        top, bottom = -top, -bottom
    return Answer(str(top) if bottom == 1 else f"{top}/{bottom}", Fraction(top, bottom))


def fraction(value: Number) -> Answer:
    """`value` as a fraction in lowest terms."""
    value = Fraction(value)
    return Answer(str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}", value)


def round_half_up(value: Number, places: int) -> Fraction:
    """`value` rounded to `places` decimals, halves away from zero, as schools do it."""
    scaled = abs(Fraction(value)) * Fraction(10) ** places
    size = Fraction((2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)) / Fraction(10) ** places
    return -size if value < 0 else size


def rounded(value: Number, places: int, before: str = "", after: str = "") -> Answer:
    """`value` rounded and always written with `places` decimals."""
    near = round_half_up(value, places)
    whole = f"{abs(near.numerator * 10**places // near.denominator):0{places + 1}d}"
    text = f"{whole[:-places]}.{whole[-places:]}" if places else whole
    return Answer(f"{'-' if near < 0 else ''}{before}{text}{after}", near)


def money(value: Number) -> Answer:
    """Pounds: £12 or £12.50, to the nearest penny."""
    near = round_half_up(value, 2)
    return num(near, before="£") if near.denominator == 1 else rounded(near, 2, before="£")


def root(value: int, after: str = "") -> Answer | None:
    """The square root of a whole number to one decimal place, exactly rounded; None below zero."""
    if value <= 0:
        return None
    twentieths = isqrt(400 * value)  # floor(20 * root): tells on which side of a half the tenth lies
    return rounded(Fraction((twentieths + 1) // 2, 10), 1, after=after)


def power(base: str, index: int) -> str:
    return base if index == 1 else f"{base}^{index}"


def poly(coefficients: Sequence[int], letter: str = "x") -> Answer:
    """A polynomial from the highest power down, such as (1, -6, 9): x^2 - 6x + 9."""
    degree = len(coefficients) - 1
    text = ""
    for index, c in enumerate(coefficients):
        if c == 0:
            continue
        rest = "" if index == degree else power(letter, degree - index)
        size = str(abs(c)) if abs(c) != 1 or not rest else ""
        sign = ("-" if c < 0 else "") if not text else (" - " if c < 0 else " + ")
        text += f"{sign}{size}{rest}"
    first = next((i for i, c in enumerate(coefficients) if c), degree)
    return Answer(text or "0", tuple(coefficients[first:]))


def term(coefficient: int, letter: str, index: int) -> Answer | None:
    """A single term such as 6x^5; None for an index below 1, which this level does not write."""
    if index < 1:
        return None
    return Answer(f"{'' if coefficient == 1 else coefficient}{power(letter, index)}", (coefficient, index))


def signed(value: int) -> str:
    """` + 3` or ` - 3`, to follow another term."""
    return f" - {-value}" if value < 0 else f" + {value}"
